"""A queue of keys: each at most once in it, and never in two hands at a time."""

import asyncio
import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 60.0


@dataclass(slots=True)
class WorkQueue(Generic[K]):
    """A key that is added while it is being worked on comes again afterwards."""

    ready: asyncio.Queue[K] = field(default_factory=asyncio.Queue)
    waiting: set[K] = field(default_factory=set)
    in_hand: set[K] = field(default_factory=set)
    again: set[K] = field(default_factory=set)
    failures: dict[K, int] = field(default_factory=dict)

    def add(self, key: K) -> None:
        if key in self.in_hand:
            self.again.add(key)
        elif key not in self.waiting:
            self.waiting.add(key)
            self.ready.put_nowait(key)

    async def take(self) -> K:
        key = await self.ready.get()
        self.waiting.discard(key)
        self.in_hand.add(key)
        return key

    def done(self, key: K) -> None:
        self.failures.pop(key, None)
        self.release(key)

    def retry(self, key: K) -> float:
        """Puts the key back after a delay that doubles with each failure in a row, and tells it."""
        failures = self.failures.get(key, 0)
        self.failures[key] = failures + 1
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures, 10))
        delay *= random.uniform(0.8, 1.2)
        self.release(key)
        asyncio.get_running_loop().call_later(delay, self.add, key)
        return delay

    def release(self, key: K) -> None:
        self.in_hand.discard(key)
        if key in self.again:
            self.again.discard(key)
            self.add(key)
