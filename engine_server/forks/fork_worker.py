"""A process that forks, seen from the engine's process."""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from engine_server.contract.base.python_module import module_command
from engine_server.forks.frames import Frame, read_frame, write_frame
from engine_server.forks.task_line import PendingTask


class WorkerEndedError(RuntimeError):
    """The process ended before it had run a task."""

    def __init__(self) -> None:
        super().__init__("the process that runs the task in a fork has ended")


# Called once for each task that was sent.
Finish = Callable[[PendingTask[Any], bytes | memoryview | WorkerEndedError], None]


class ForkWorker:
    """A process, and the tasks that it has: each gets its result, or the error of the process's end.

    One thread sends; another calls `finish`.
    """

    def __init__(
        self, module: str, description: msgspec.Struct, finish: Finish, environment: Mapping[str, str] = {}
    ) -> None:
        """Start `python -m MODULE DESCRIPTOR`, which reads the description from DESCRIPTOR."""
        self._finish = finish
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        # By number; None once the process has ended. Guarded by the lock.
        self._tasks: dict[int, PendingTask[Any]] | None = {}
        descriptor = os.memfd_create("description")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.msgpack.encode(description))
            stream.flush()
            os.lseek(descriptor, 0, os.SEEK_SET)
            self.process = subprocess.Popen(
                module_command(module, str(descriptor)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                env=os.environ | environment,
            )
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, task: PendingTask[Any]) -> bool:
        """Send a task to the process. Return False if it has ended, in which case `finish` isn't called."""
        assert self.process.stdin is not None
        frame = Frame(next(self._numbers), msgspec.msgpack.encode(task.content))
        with self._lock:
            if self._tasks is None or self.process.poll() is not None:
                return False
            self._tasks[frame.number] = task
        try:
            write_frame(self.process.stdin, frame)
        except OSError:
            with self._lock:
                # Finished with an error, or not sent.
                return self._tasks is None or self._tasks.pop(frame.number, None) is None
        return True

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(OSError):  # what was not written is for a process that has ended
            self.process.stdin.close()
        self.process.wait()

    def _receive(self) -> None:
        """Pass on results until the process and its forks have ended.

        A pipe to an ended process may take frames for a moment after its output has ended.
        """
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while (frame := read_frame(stream)) is not None:
                with self._lock:
                    assert self._tasks is not None
                    task = self._tasks.pop(frame.number)
                self._finish(task, frame.content)
        with self._lock:
            left, self._tasks = self._tasks or {}, None
        for task in left.values():
            self._finish(task, WorkerEndedError())
