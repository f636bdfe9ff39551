"""The order of tasks: callers take turns, and each has a share of those that run and those that wait."""

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from engine_server.requests.errors import QueueFullError, ShareUsedError

# A caller's id; None for all requests that have none.
CallerId = str | None
Result = TypeVar("Result")


class Shares(NamedTuple):
    """The most tasks at a time."""

    # Of all, and of one caller. Requests without a caller may have them all.
    running: int
    running_of_caller: int
    waiting: int
    waiting_of_caller: int


@dataclass(slots=True, eq=False)
class PendingTask(Generic[Result]):
    """A task that a caller's requests wait for. Tasks with the same digest are equal."""

    caller: CallerId
    digest: bytes
    # As it is sent to the process.
    content: msgspec.Struct
    # One for each of the requests.
    results: list[Future[Result]] = field(default_factory=list)


# By caller and digest.
Tasks = OrderedDict[CallerId, dict[bytes, PendingTask[Result]]]


class TaskLine(Generic[Result]):
    """The tasks that wait, each caller's in the order of arrival, and those that run."""

    def __init__(self, things: str, purpose: str, shares: Shares) -> None:
        """Make an empty line of e.g. "new grammars" that wait "to be compiled"."""
        self._things = things
        self._purpose = purpose
        self.shares = shares
        # The caller whose turn is next comes first.
        self._waiting: Tasks[Result] = OrderedDict()
        self._running: Tasks[Result] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        return count(self._waiting)

    @property
    def num_running(self) -> int:
        return count(self._running)

    def find(self, caller: CallerId, digest: bytes) -> PendingTask[Result] | None:
        """Return a caller's task that waits or runs, or None."""
        waiting, running = self._waiting.get(caller, {}), self._running.get(caller, {})
        return waiting.get(digest) or running.get(digest)

    def add(self, task: PendingTask[Result]) -> None:
        """Add a task behind the caller's others. Raises QueueFullError or ShareUsedError."""
        share = self.shares.waiting_of_caller
        if task.caller is not None and len(self._waiting.get(task.caller, ())) >= share:
            raise ShareUsedError(
                f"{share} {self._things} of this caller wait {self._purpose}, the most that may; try again later"
            )
        waiting = self.num_waiting
        if waiting >= self.shares.waiting:
            raise QueueFullError(
                f"{waiting} {self._things} wait {self._purpose}, of {self.shares.waiting} at most; try again later"
            )
        self._waiting.setdefault(task.caller, {})[task.digest] = task

    def withdraw(self, task: PendingTask[Result]) -> None:
        """Remove a task if it waits; one that runs goes on."""
        remove(self._waiting, task)

    def begin_next(self) -> PendingTask[Result] | None:
        """Return the task whose turn it is, which runs from now on; None if none may run now."""
        if self.num_running == self.shares.running:
            return None
        for caller, tasks in self._waiting.items():
            limit = self.shares.running if caller is None else self.shares.running_of_caller
            if len(self._running.get(caller, ())) < limit:
                task = next(iter(tasks.values()))
                self._waiting.move_to_end(caller)
                remove(self._waiting, task)
                self._running.setdefault(caller, {})[task.digest] = task
                return task
        return None

    def end(self, task: PendingTask[Result]) -> bool:
        """Remove a task, and return False if it does not run."""
        return remove(self._running, task)


def count(tasks: Tasks[Result]) -> int:
    return sum(map(len, tasks.values()))


def remove(tasks: Tasks[Result], task: PendingTask[Result]) -> bool:
    """Remove a task, and its caller with the last one. Return False if it is not among them."""
    of_caller = tasks.get(task.caller, {})
    if of_caller.get(task.digest) is not task:
        return False
    del of_caller[task.digest]
    if not of_caller:
        del tasks[task.caller]
    return True
