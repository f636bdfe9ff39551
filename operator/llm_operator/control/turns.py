"""The order in which keys are taken: by priority, and within one in turns of their namespaces."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from engine_server.contract.cluster.api import Key

# An event that has waited for so long is taken after at most so many edits.
LONG_WAIT_SECONDS = 1.0
MOST_EDITS = 8


class Priority(IntEnum):
    """The order in which keys are taken. An edit waits neither for a relist nor for the changes of pods."""

    EDIT = 0
    EVENT = 1
    RELIST = 2


class Waiting(NamedTuple):
    """A key, and the time since when it waits."""

    since: float
    key: Key


@dataclass(slots=True)
class Turns:
    """Keys of several namespaces. One namespace's thousand keys delay another's by one key at a time."""

    # By priority: the keys of each namespace; the first namespace is the next whose turn it is.
    lines: dict[Priority, dict[str, deque[Waiting]]] = field(
        default_factory=lambda: {priority: {} for priority in Priority}
    )
    # Counts the keys.
    count: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    # Edits in a row.
    edits: int = 0

    def put(self, key: Key, priority: Priority, since: float) -> None:
        """Add a key that waits since a time (monotonic, in seconds)."""
        self.lines[priority].setdefault(key.namespace, deque()).append(Waiting(since, key))
        self.count.release()

    async def get(self) -> Key:
        """Wait for a key, and remove and return the next."""
        await self.count.acquire()
        priority = self._next_priority(time.monotonic())
        self.edits = self.edits + 1 if priority == Priority.EDIT else 0
        namespaces = self.lines[priority]
        namespace = next(iter(namespaces))
        line = namespaces.pop(namespace)
        key = line.popleft().key
        if line:
            namespaces[namespace] = line
        return key

    def empty(self) -> bool:
        return not any(self.lines.values())

    def _next_priority(self, now: float) -> Priority:
        events = self.lines[Priority.EVENT]
        if self.edits >= MOST_EDITS and events:
            first = next(iter(events.values()))[0]
            if now - first.since >= LONG_WAIT_SECONDS:
                return Priority.EVENT
        return next(priority for priority, namespaces in self.lines.items() if namespaces)
