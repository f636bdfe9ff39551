"""A queue of LLMDeployments: each at most once in it, and never in two hands at a time."""

import asyncio
import random
from dataclasses import dataclass, field

from engine_server.contract.api import Key

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 60.0


@dataclass(slots=True)
class WorkQueue:
    """A key that is added while it is being worked on comes again afterwards."""

    ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)
    due: set[Key] = field(default_factory=set)
    in_hand: set[Key] = field(default_factory=set)
    delays: dict[Key, float] = field(default_factory=dict)  # of those that failed

    def add(self, key: Key) -> None:
        if key not in self.due:
            self.due.add(key)
            if key not in self.in_hand:
                self.ready.put_nowait(key)

    async def take(self) -> Key:
        key = await self.ready.get()
        self.due.remove(key)
        self.in_hand.add(key)
        return key

    def release(self, key: Key) -> None:
        self.in_hand.remove(key)
        if key in self.due:
            self.ready.put_nowait(key)

    def done(self, key: Key) -> None:
        self.delays.pop(key, None)
        self.release(key)

    def retry(self, key: Key) -> float:
        """Puts the key back after a delay that doubles with each failure in a row, and tells it."""
        delay = min(LONGEST_DELAY_SECONDS, 2 * self.delays.get(key, FIRST_DELAY_SECONDS / 2))
        self.delays[key] = delay
        self.release(key)
        asyncio.get_running_loop().call_later(delay * random.uniform(0.8, 1.2), self.add, key)
        return delay
