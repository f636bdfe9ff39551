"""Tasks of many callers in one process that forks."""

import threading
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic

import msgspec

from engine_server.forks.fork_worker import Finish, ForkWorker, WorkerEndedError
from engine_server.forks.task_line import CallerId, PendingTask, Result, TaskLine


class ForkedTasks(ABC, Generic[Result]):
    """The tasks of a process that starts with the first one, and again after its end. Any thread may call methods."""

    def __init__(self, line: TaskLine[Result], threads: str) -> None:
        # Reentrant, since a result's callbacks may call `_withdraw`.
        self._lock = threading.RLock()
        self._line = line
        # Writes may block until the process has room.
        self._writer = ThreadPoolExecutor(1, threads)
        self._worker: ForkWorker | None = None

    @abstractmethod
    def _start_worker(self, finish: Finish) -> ForkWorker:
        """Start the process."""

    @abstractmethod
    def _decode(self, content: bytes | memoryview) -> Result:
        """Return a result that the process has sent; what this raises is the task's error."""

    def _known(self, digest: bytes) -> Result | None:
        """Return the result of a task that need not run. The lock is held."""
        return None

    def _keep(self, digest: bytes, result: Result) -> None:
        """Take note of a new result. The lock is held."""

    def _submit(self, digest: bytes, content: msgspec.Struct, caller: CallerId) -> Future[Result]:
        """Return a task's result, once it has run. A request that no longer wants it cancels it.

        Raises QueueFullError, or ShareUsedError if the caller has too many tasks already.
        """
        result: Future[Result] = Future()
        with self._lock:
            known = self._known(digest)
            if known is not None:
                result.set_result(known)
                return result
            task = self._line.find(caller, digest)
            if task is None:
                task = PendingTask(caller, digest, content)
                self._line.add(task)
            task.results.append(result)
            self._advance()
        result.add_done_callback(partial(self._withdraw, task))
        return result

    def _withdraw(self, task: PendingTask[Result], result: Future[Result]) -> None:
        """Take a task out of the line once the last of its requests has cancelled its result."""
        if result.cancelled():
            with self._lock:
                task.results.remove(result)
                if not task.results:
                    self._line.withdraw(task)

    def _advance(self) -> None:
        """Begin the tasks whose turn it is. The lock is held."""
        while (task := self._line.begin_next()) is not None:
            known = self._known(task.digest)  # has run for another caller meanwhile
            if known is None:
                self._writer.submit(self._send, task)
            else:
                self._end(task, known)

    def _end(self, task: PendingTask[Result], outcome: Result | Exception) -> None:
        """Give a task's requests their result, unless they have it. The lock is held."""
        if not self._line.end(task):
            return
        for result in task.results:
            if result.set_running_or_notify_cancel():
                if isinstance(outcome, Exception):
                    result.set_exception(outcome)
                else:
                    result.set_result(outcome)

    def _finish(self, task: PendingTask[Result], content: bytes | memoryview | Exception) -> None:
        """End a task that was sent to the process, and begin the next."""
        outcome: Result | Exception
        try:
            outcome = content if isinstance(content, Exception) else self._decode(content)
        except Exception as error:
            outcome = error
        with self._lock:
            if not isinstance(outcome, Exception):
                self._keep(task.digest, outcome)
            self._end(task, outcome)
            self._advance()

    def _send(self, task: PendingTask[Result]) -> None:
        """Send a task to the process, and start another process if that has ended."""
        try:
            if self._worker is None or not self._worker.send(task):
                self._worker = self._replace_worker()
                if not self._worker.send(task):
                    raise WorkerEndedError
        except Exception as error:
            self._finish(task, error)

    def _replace_worker(self) -> ForkWorker:
        if self._worker is not None:
            self._worker.close()
        worker = self._start_worker(partial(finish, weakref.ref(self)))
        weakref.finalize(self, worker.close)
        return worker


def finish(
    owner: "weakref.ref[ForkedTasks[Any]]",
    task: PendingTask[Any],
    content: bytes | memoryview | WorkerEndedError,
) -> None:
    """Pass on the outcome of a task, unless its owner is gone."""
    if (tasks := owner()) is not None:
        tasks._finish(task, content)
