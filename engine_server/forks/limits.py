"""Limits of a process on its own time, memory and files."""

import os
import resource
import signal
from pathlib import Path
from typing import NamedTuple


class Limits(NamedTuple):
    """What a fork may take."""

    # Of CPU time.
    seconds: float
    # Of memory beyond that of the process.
    memory: int
    # Of its result.
    result: int

    def apply(self) -> None:
        """Limit this process; beyond its time it is killed by SIGPROF."""
        limit_memory(self.memory)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.result, self.result))
        signal.setitimer(signal.ITIMER_PROF, self.seconds)


def limit_memory(more: int) -> None:
    """Limit this process's private memory to `more` bytes above its present size."""
    with Path("/proc/self/status").open() as status:
        (data,) = (int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = (data << 10) + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ended_on_time(status: int) -> bool:
    """Return True for the exit status of a process that used up its time."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
