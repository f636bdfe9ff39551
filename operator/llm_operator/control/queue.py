"""A queue of LLMDeployments: each at most once in it, and with one worker at a time."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_server.contract.cluster.api import Key
from llm_operator import metrics
from llm_operator.control.turns import Priority, Turns

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 60.0
# After a reconcile that succeeded. A rollout changes its pods dozens of times a second, and a reconcile reads them all.
REST_SECONDS = 0.2


class Due(NamedTuple):
    """A key's place in the queue: since when, and with which priority."""

    since: float
    priority: Priority


@dataclass(slots=True)
class WorkQueue:
    """A key that is added while a worker has it is queued again afterwards: at once for an edit, else after a rest."""

    # An entry is out of date if its key is not due any more, or is not free.
    ready: Turns = field(default_factory=Turns)
    due: dict[Key, Due] = field(default_factory=dict)
    in_progress: set[Key] = field(default_factory=set)
    # The last delay of keys that failed, in seconds.
    delays: dict[Key, float] = field(default_factory=dict)
    # The pending timer of a key, at most one.
    timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    # Keys that are not taken before their timer has expired.
    postponed: set[Key] = field(default_factory=set)
    # Keys that only an edit takes before their rest has ended.
    rests: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)

    def add(self, key: Key, priority: Priority = Priority.EVENT) -> None:
        """Queue a key, or raise its priority if it is queued already."""
        known = self.due.get(key)
        if known is not None and known.priority <= priority:
            return
        self.due[key] = Due(known.since if known else time.monotonic(), priority)
        self._enter_if_free(key)

    async def take(self) -> Key:
        """Return the next key. The worker passes it to `done`, `retry` or `postpone` afterwards."""
        while True:
            key = await self.ready.get()
            if self._is_free(key):
                break
        metrics.QUEUE_SECONDS.observe(time.monotonic() - self.due.pop(key).since)
        self.in_progress.add(key)
        if timer := self.timers.pop(key, None):
            timer.cancel()
        return key

    def done(self, key: Key, again_after: float | None = None) -> None:
        """End the work on a key that succeeded; queue it again after so many seconds, if given."""
        self.delays.pop(key, None)
        if rest := self.rests.pop(key, None):
            rest.cancel()
        self.rests[key] = asyncio.get_running_loop().call_later(REST_SECONDS, self._end_rest, key)
        self._release(key)
        if again_after is not None:
            self._add_after(key, again_after)

    def retry(self, key: Key, longest: float = LONGEST_DELAY_SECONDS) -> float:
        """End the work on a key that failed; return the delay in seconds after which it is queued again.

        The delay doubles with each failure in a row, up to `longest`. An event queues the key before.
        """
        delay = min(longest, 2 * self.delays.get(key, FIRST_DELAY_SECONDS / 2))
        self.delays[key] = delay
        self._release(key)
        self._add_after(key, delay * random.uniform(0.8, 1.2))
        return delay

    def postpone(self, key: Key, delay: float) -> float:
        """End the work on a key that could not be done; return the delay in seconds, before which nothing queues it."""
        self.postponed.add(key)
        self._release(key)
        self._add_after(key, delay * random.uniform(1.0, 1.2))
        return delay

    def _release(self, key: Key) -> None:
        self.in_progress.remove(key)
        self._enter_if_free(key)

    def _end_rest(self, key: Key) -> None:
        del self.rests[key]
        self._enter_if_free(key)

    def _is_free(self, key: Key) -> bool:
        """Return True for a key that is due and may be taken now."""
        if key not in self.due or key in self.in_progress or key in self.postponed:
            return False
        return key not in self.rests or self.due[key].priority == Priority.EDIT

    def _enter_if_free(self, key: Key) -> None:
        if self._is_free(key):
            since, priority = self.due[key]
            self.ready.put(key, priority, since)

    def _add_after(self, key: Key, delay: float) -> None:
        self.timers[key] = asyncio.get_running_loop().call_later(delay, self._expire, key)

    def _expire(self, key: Key) -> None:
        del self.timers[key]
        if key in self.postponed:
            self.postponed.remove(key)
            self._enter_if_free(key)
        self.add(key)
