"""The loop of a process that runs each task in a fork of its own."""

import os
import selectors
import signal
from collections.abc import Callable
from typing import NamedTuple

from engine_server.forks.frames import HEAD, Frame, read_frame
from engine_server.forks.limits import Limits


class Fork(NamedTuple):
    """A running task."""

    number: int
    process: int
    # A file in memory for its result, which the fork alone has besides this process.
    result: int


class ForkServer:
    """Runs the tasks of standard input until its end; each gets a frame on standard output."""

    def __init__(
        self,
        run: Callable[[bytes | memoryview], bytes],
        ended: Callable[[int], bytes],
        limits: Limits,
        num_forks: int,
    ) -> None:
        """Make a server of `num_forks` forks at a time.

        run: the result of a task, in the fork.
        ended: the result of a task whose fork did not return one, by its exit status.
        """
        self._run = run
        self._ended = ended
        self._limits = limits
        self._num_forks = num_forks
        # Unbuffered, since the selector doesn't see what a buffer holds.
        self._input = os.fdopen(0, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._forks: set[Fork] = set()

    def serve(self) -> None:
        """Run tasks until the end of standard input."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._selector.register(self._input, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, Fork):
                    self._finish(key.fd, key.data)
                elif (frame := read_frame(self._input)) is not None:
                    self._start(frame)
                else:
                    return

    def _start(self, frame: Frame) -> None:
        # Its end is that of the fork.
        ours, theirs = os.pipe()
        result = os.memfd_create("result")
        process = os.fork()
        if not process:
            self._run_fork(frame.content, result)
        os.close(theirs)
        fork = Fork(frame.number, process, result)
        self._forks.add(fork)
        self._selector.register(ours, selectors.EVENT_READ, fork)
        if len(self._forks) == self._num_forks:
            self._selector.unregister(self._input)

    def _run_fork(self, task: bytes | memoryview, result: int) -> None:
        """Run a task in a fork, and leave its result in a file. Does not return."""
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nothing, stream)
            for other in self._forks:
                os.close(other.result)
            self._limits.apply()
            content = self._run(task)
            signal.setitimer(signal.ITIMER_PROF, 0)
            with os.fdopen(result, "wb") as file:
                file.write(content)
            os._exit(0)
        finally:
            os._exit(1)

    def _finish(self, pipe: int, fork: Fork) -> None:
        """Pass on a fork's result."""
        self._selector.unregister(pipe)
        os.close(pipe)
        _, status = os.waitpid(fork.process, 0)
        if status:
            content = self._ended(status)
            os.ftruncate(fork.result, 0)
            os.pwrite(fork.result, content, 0)
        copy(fork.result, fork.number)
        os.close(fork.result)
        if len(self._forks) == self._num_forks:
            self._selector.register(self._input, selectors.EVENT_READ)
        self._forks.remove(fork)


def copy(file: int, number: int) -> None:
    """Write the content of a file to standard output, in a frame."""
    size = os.fstat(file).st_size
    head = memoryview(HEAD.pack(number, size))
    while head:
        head = head[os.write(1, head) :]
    offset = 0
    while offset < size:
        offset += os.sendfile(1, file, offset, size - offset)
