"""Processes of ours: each ends with its parent, and the parent hears at once of its end, with its last words.

Either side holds one end of a socket pair, which the kernel closes whatever happens to the process, a kill -9 too.
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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

logger = logging.getLogger(__name__)


class Child:
    """A module that runs in a process of its own, by `run`."""

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self.lifeline, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", module, *arguments, str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def let_go(self) -> None:
        """Have it end; whoever waits for its last words hears none."""
        self.lifeline.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float) -> None:
        """Until it has ended; after `timeout` seconds it is killed."""
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def death(self) -> str:
        """Wait until it ends, and tell how, and what it said."""
        words = b"".join(iter(lambda: self.lifeline.recv(4096), b"")).decode()
        who = f"{self.name} (process {self.process.pid})"
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"{who} closed its connection"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"{who} {how}: {words}" if words else f"{who} {how}"


class Children:
    """Several of a module, which work together: the first that ends is the `death` of all.

    Each is given its name. They are let go once nobody holds this any more, and their folder is removed.
    """

    def __init__(self, module: str, names: Iterable[str], folder: str) -> None:
        self.death: Future[str] = Future()  # in a thread of its own; cancelled where they are let go
        children = [Child(name, module, name, folder) for name in names]
        weakref.finalize(self, Children.end, children, self.death, folder)
        for child in children:
            threading.Thread(target=Children.watch, args=(child, self.death), daemon=True).start()

    @staticmethod
    def watch(child: Child, death: "Future[str]") -> None:
        reason = child.death()
        with suppress(InvalidStateError):  # another was first, or it was let go
            death.set_result(reason)

    @staticmethod
    def end(children: list[Child], death: "Future[str]", folder: str) -> None:
        death.cancel()
        for child in children:
            child.let_go()
        for child in children:
            child.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, serve: Callable[[str, Callable[[str], None]], None]) -> None:
    """What a child's main is: `serve(folder, fail)`, until the parent lets go.

    The command line ends with the folder that is cleaned up then, and the lifeline. fail(reason) ends the process, in
    whatever thread.
    """
    folder, lifeline = sys.argv[-2:]
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {name}: %(message)s")
    # A terminal's Ctrl-C reaches the whole group; it is for the parent to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours = socket.socket(fileno=int(lifeline))

    def fail(reason: str) -> None:
        ours.sendall(reason.encode())
        os._exit(1)

    def wait() -> None:
        ours.recv(1)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    try:
        serve(folder, fail)
    except Exception as error:
        logger.exception("this process can't go on")
        fail(f"{type(error).__name__}: {error}")
