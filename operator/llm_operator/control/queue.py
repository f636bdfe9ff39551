"""A queue of LLMDeployments: each at most once in it, and with one worker at a time."""

import asyncio
import random
from dataclasses import dataclass, field

from engine_server.contract.api import Key

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 60.0


@dataclass(slots=True)
class WorkQueue:
    """A key that is added while a worker has it is queued again afterwards."""

    ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)
    due: set[Key] = field(default_factory=set)
    in_progress: set[Key] = field(default_factory=set)
    # The last delay of keys that failed, in seconds.
    delays: dict[Key, float] = field(default_factory=dict)
    # The pending timer of a key, at most one.
    timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)

    def add(self, key: Key) -> None:
        if key not in self.due:
            self.due.add(key)
            if key not in self.in_progress:
                self.ready.put_nowait(key)

    async def take(self) -> Key:
        """Return the next key. The worker passes it to `done` or `retry` afterwards."""
        key = await self.ready.get()
        self.due.remove(key)
        self.in_progress.add(key)
        if timer := self.timers.pop(key, None):
            timer.cancel()
        return key

    def done(self, key: Key, again_after: float | None = None) -> None:
        """End the work on a key that succeeded; queue it again after so many seconds, if given."""
        self.delays.pop(key, None)
        self._release(key)
        if again_after is not None:
            self._add_after(key, again_after)

    def retry(self, key: Key) -> float:
        """End the work on a key that failed; return the delay in seconds after which it is queued again.

        The delay doubles with each failure in a row.
        """
        delay = min(LONGEST_DELAY_SECONDS, 2 * self.delays.get(key, FIRST_DELAY_SECONDS / 2))
        self.delays[key] = delay
        self._release(key)
        self._add_after(key, delay * random.uniform(0.8, 1.2))
        return delay

    def _release(self, key: Key) -> None:
        self.in_progress.remove(key)
        if key in self.due:
            self.ready.put_nowait(key)

    def _add_after(self, key: Key, delay: float) -> None:
        self.timers[key] = asyncio.get_running_loop().call_later(delay, self._expire, key)

    def _expire(self, key: Key) -> None:
        del self.timers[key]
        self.add(key)
