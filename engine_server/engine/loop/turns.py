"""Threads for work that is too long for an event loop, which those who sent the work share in turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

# The sender of the request that a task answers: its caller's id, or else its address. None: there is none.
sender: ContextVar[Hashable] = ContextVar("sender", default=None)


# The size from which on work is long.
LONG = 100_000


@dataclass(slots=True, eq=False)
class Work:
    """Something to do for a sender."""

    sender: Hashable
    do: Callable[[], Any]
    size: int
    context: Context = field(default_factory=copy_context)
    result: Future[Any] = field(default_factory=Future)


class Line:
    """Work that waits, of which each sender's is in the order of arrival."""

    def __init__(self) -> None:
        # The sender whose work ended, or who came, the longest ago is first.
        self._works: OrderedDict[Hashable, deque[Work]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._works)

    def add(self, work: Work) -> None:
        self._works.setdefault(work.sender, deque()).append(work)

    def first(self, running: Mapping[Hashable, int]) -> Work:
        """Return the first work of the sender that has the least running; of equals, of the first in line."""
        return self._works[min(self._works, key=running.__getitem__)][0]

    def withdraw(self, work: Work) -> None:
        """Remove work if it waits."""
        works = self._works.get(work.sender, deque())
        if work in works:
            works.remove(work)
            if not works:
                del self._works[work.sender]

    def move_to_end(self, sender: Hashable) -> None:
        """Let all others go first, if the sender is in the line."""
        if sender in self._works:
            self._works.move_to_end(sender)


class Turns:
    """Threads, of which one that is free goes to the sender with the fewest.

    Of equals it is the one whose work ended, or who came, the longest ago. One sender alone has all threads. Short work
    goes before long work, but not twice in a row while both wait: a flood of either never stops the other.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._num_free = num_threads
        self.num_threads = num_threads
        self._running: Counter[Hashable] = Counter()
        self._short, self._long = Line(), Line()
        # The line that the latest work came from.
        self._latest = self._long
        self._closed = False
        self._lock = Lock()

    async def run(self, do: Callable[[], T], size: int = 0) -> T:
        """Return the result of `do`, which begins when it is the turn of the task's sender.

        size: work of at least LONG is long.
        """
        work = Work(sender.get(), do, size)
        with self._lock:
            self._line_of(work).add(work)
            self._begin()
        try:
            result: T = await asyncio.wrap_future(work.result)
        except asyncio.CancelledError:
            with self._lock:
                self._line_of(work).withdraw(work)
            raise
        return result

    def close(self) -> None:
        """End the threads when nothing waits any more."""
        with self._lock:
            self._closed = True
            self._end_threads()

    def _line_of(self, work: Work) -> Line:
        return self._short if work.size < LONG else self._long

    def _begin(self) -> None:
        if not self._num_free or not (self._short or self._long):
            return
        short_first = self._short and not (self._long and self._latest is self._short)
        self._latest = self._short if short_first else self._long
        work = self._latest.first(self._running)
        self._latest.withdraw(work)
        self._num_free -= 1
        self._running[work.sender] += 1
        self._executor.submit(self._run, work)

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
            for line in (self._short, self._long):
                line.move_to_end(work.sender)
            self._begin()
            self._end_threads()

    def _end_threads(self) -> None:
        if self._closed and self._num_free == self.num_threads:
            self._executor.shutdown(wait=False)
