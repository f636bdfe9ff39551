"""Threads for work that is too long for an event loop, which those who sent the work share in turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

# The sender of the request that a task answers: its caller's id, or else its address. None: there is none.
sender: ContextVar[Hashable] = ContextVar("sender", default=None)


@dataclass(slots=True, eq=False)
class Work:
    """Something to do for a sender."""

    sender: Hashable
    do: Callable[[], Any]
    context: Context = field(default_factory=copy_context)
    result: Future[Any] = field(default_factory=Future)


class Turns:
    """Threads, of which one that is free goes to the sender with the fewest.

    Of equals it is the one whose work ended, or who came, the longest ago. One sender alone has all threads.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._num_free = num_threads
        self.num_threads = num_threads
        self._running: Counter[Hashable] = Counter()
        # By sender that waits, each one's in the order of arrival.
        self._waiting: OrderedDict[Hashable, deque[Work]] = OrderedDict()
        self._closed = False
        self._lock = Lock()

    async def run(self, do: Callable[[], T]) -> T:
        """Return the result of `do`, which begins when it is the turn of the task's sender."""
        work = Work(sender.get(), do)
        with self._lock:
            self._waiting.setdefault(work.sender, deque()).append(work)
            self._begin()
        try:
            result: T = await asyncio.wrap_future(work.result)
        except asyncio.CancelledError:
            with self._lock:
                self._withdraw(work)
            raise
        return result

    def close(self) -> None:
        """End the threads when nothing waits any more."""
        with self._lock:
            self._closed = True
            self._end_threads()

    def _begin(self) -> None:
        if not self._num_free or not self._waiting:
            return
        first = min(self._waiting, key=self._running.__getitem__)
        work = self._waiting[first][0]
        self._withdraw(work)
        self._num_free -= 1
        self._running[first] += 1
        self._executor.submit(self._run, work)

    def _withdraw(self, work: Work) -> None:
        """Remove work if it waits."""
        others = self._waiting.get(work.sender, deque())
        if work in others:
            others.remove(work)
            if not others:
                del self._waiting[work.sender]

    def _run(self, work: Work) -> None:
        if work.result.set_running_or_notify_cancel():
            try:
                work.result.set_result(work.context.run(work.do))
            except BaseException as error:  # which the task raises
                work.result.set_exception(error)
        with self._lock:
            self._num_free += 1
            self._running[work.sender] -= 1
            if not self._running[work.sender]:
                del self._running[work.sender]
            if work.sender in self._waiting:
                self._waiting.move_to_end(work.sender)
            self._begin()
            self._end_threads()

    def _end_threads(self) -> None:
        if self._closed and self._num_free == self.num_threads:
            self._executor.shutdown(wait=False)
