"""Orphans of a process's children, which it adopts, so that their CPU seconds count as its children's."""

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path

# Of Linux's prctl: orphaned descendants become children of this process, not of the machine's first.
PR_SET_CHILD_SUBREAPER = 36
SECONDS = 0.1


class Orphans:
    """Waits for the end of adopted children in a thread; those that this process has started are left to it."""

    def __init__(self) -> None:
        # Of processes that this one has started itself.
        self._own: set[int] = set()
        self._stop = threading.Event()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        threading.Thread(target=self._run, name="orphans", daemon=True).start()

    def own(self, pid: int) -> None:
        """Record a child that this process has started and waits for."""
        self._own.add(pid)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        # A child may end before it is recorded as this process's own: one is waited for at the second sight.
        before: set[int] = set()
        while not self._stop.wait(SECONDS):
            ended = {pid for pid in list_children() - self._own if has_ended(pid)}
            for pid in ended & before:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            before = ended


def list_children() -> set[int]:
    """Return the ids of this process's children, those that have ended and were not waited for included."""
    children: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            children.update(map(int, file.read_text().split()))
    return children


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
