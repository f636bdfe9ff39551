"""Child processes that end with their parent, and whose end the parent detects immediately.

Parent and child hold one end each of a socket pair, the lifeline. The kernel closes it when a process ends for any
reason, SIGKILL included. A child that fails sends the reason over its lifeline. Its standard error is copied to the
parent's, and its last lines are kept for error messages.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import IO

from engine_server.contract.base.logs import configure_logs
from engine_server.contract.base.python_module import module_command

logger = logging.getLogger(__name__)

# Time to wait for the exit status, and for the end of standard error, after the lifeline has closed.
EXIT_SECONDS = 1.0
LOG_BYTES = 16384
LOG_LINES = 10
# A terminal's Ctrl-C and a service manager's SIGTERM reach the whole process group; the parent decides what ends.
IGNORED = (signal.SIGINT, signal.SIGTERM)


class Child:
    """A child process that runs a module by `run`. Only the process that created it can end it; its forks can't."""

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self.lifeline, theirs = socket.socketpair()
        command = module_command(module, *arguments, str(theirs.fileno()))
        with theirs, blocked(IGNORED):  # the child inherits the mask, until it has set its dispositions
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()]
            )
        assert self.process.stderr is not None
        self._log = LogTail(self.process.stderr)
        self._owner = os.getpid()
        self._death: str | None = None
        self._lock = threading.Lock()

    @property
    def owned(self) -> bool:
        """False in a fork of the process that created the child."""
        return os.getpid() == self._owner

    def close_lifeline(self) -> None:
        """Ask the child to end; a reason that it sends from now on is lost."""
        self.lifeline.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float) -> None:
        """Wait for the child's end; kill it after `timeout` seconds."""
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.join(EXIT_SECONDS)

    def death(self) -> str:
        """Wait for the child's end; return its exit status, the reason that it sent, and its last log lines.

        Every call, in any thread, returns the same text.
        """
        with self._lock:
            if self._death is None:
                self._death = self._read_death()
            return self._death

    def _read_death(self) -> str:
        reason = b"".join(iter(lambda: self.lifeline.recv(4096), b"")).decode(errors="replace")
        name = f"{self.name} (process {self.process.pid})"
        try:
            code = self.process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{name} closed its connection"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        summary = f"{name} {how}: {reason}" if reason else f"{name} {how}"
        self._log.join(EXIT_SECONDS)
        return "\n".join(
            [summary, "its last log lines:", *lines] if (lines := self._log.lines) else [summary]
        )


class LogTail:
    """The last lines of a child's standard error, which a thread copies to the parent's."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._tail = b""
        self._thread = threading.Thread(target=self._copy, args=(stream,), daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        return self._tail.decode(errors="replace").splitlines()[-LOG_LINES:]

    def join(self, timeout: float) -> None:
        """Wait for the stream's end, which a grandchild that inherited it may delay."""
        self._thread.join(timeout)

    def _copy(self, stream: IO[bytes]) -> None:
        with stream:
            while data := os.read(stream.fileno(), 65536):
                self._tail = (self._tail + data)[-LOG_BYTES:]
                with suppress(
                    OSError
                ):  # standard error may be closed; the child must not block on a full pipe
                    while data:
                        data = data[os.write(2, data) :]


class Children:
    """Several child processes of one module that work together: `death` is the first one to end.

    Each gets its name and the folder as arguments. When this object is collected they are ended and the folder is
    removed.
    """

    def __init__(self, module: str, names: Iterable[str], folder: str) -> None:
        # Set by another thread; cancelled when the children are ended deliberately.
        self.death: Future[str] = Future()
        children = [Child(name, module, name, folder) for name in names]
        weakref.finalize(self, Children.end, children, self.death, folder)
        for child in children:
            threading.Thread(target=Children.watch, args=(child, self.death), daemon=True).start()

    @staticmethod
    def watch(child: Child, death: "Future[str]") -> None:
        reason = child.death()
        with suppress(InvalidStateError):  # another child ended first, or all were ended deliberately
            death.set_result(reason)

    @staticmethod
    def end(children: list[Child], death: "Future[str]", folder: str) -> None:
        if not all(child.owned for child in children):
            return
        death.cancel()
        for child in children:
            child.close_lifeline()
        for child in children:
            child.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, serve: Callable[[str, Callable[[str], None]], None]) -> None:
    """Run a child's main function, `serve(folder, fail)`, until the parent closes the lifeline.

    The command line ends with the folder, which is removed at the end, and the lifeline's descriptor. fail(reason),
    called in any thread, ends the process with status 1.
    """
    folder, lifeline = sys.argv[-2:]
    configure_logs(name)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    ours = socket.socket(fileno=int(lifeline))

    def fail(reason: str) -> None:
        ours.sendall(reason.encode())
        os._exit(1)

    def end_with_parent() -> None:
        ours.recv(1)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        serve(folder, fail)
    except Exception as error:
        logger.exception("process failed")
        fail(f"{type(error).__name__}: {error}")


@contextmanager
def blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread, and in processes that it starts, for the context's duration."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
