"""The spinning of OpenMP's threads, which follows the load of the CPUs.

A thread of libgomp that waits for the others spins for milliseconds before it sleeps. While every thread has its own
CPU this saves the wake-ups, a sixth of a small model's decode step. When another process needs a CPU, the thread that
shares it waits for whole time slices, and the other threads waste CPU time that the process could use.

libgomp spins for about a microsecond (100 iterations) once it manages more threads than there are CPUs (its manual,
GOMP_SPINCOUNT). That is the only limit that can be changed while it runs, so `SpinLimit` starts additional threads,
which sleep, while the CPUs are contended.
"""

import ctypes
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

TASKS = Path("/proc/self/task")
# Seconds between two reads of the scheduler's statistics.
INTERVAL = 0.1
# Average number of threads that are ready to run without a CPU from which CPUs count as contended.
CONTENDED = 0.2
# Seconds for which spinning stays limited before the load is read again; doubled while it persists.
FIRST_HOLD, LONGEST_HOLD = 8.0, 64.0
logger = logging.getLogger(__name__)


class SpinLimit:
    """A limit on the spinning of this process's OpenMP threads while other processes compete for their CPUs."""

    def __init__(self) -> None:
        self._openmp = find_openmp()
        self._team: ExtraTeam | None = None
        self._hold = FIRST_HOLD
        self._limited_until = 0.0
        self._checked, self._waited = time.monotonic(), seconds_waited()

    @property
    def limited(self) -> bool:
        """True while spinning is limited."""
        return self._team is not None

    def follow_load(self) -> None:
        """Limit spinning, or lift the limit, by the load since its last reading. To be called every step."""
        now = time.monotonic()
        elapsed = now - self._checked
        if self._openmp is None or elapsed < INTERVAL or now < self._limited_until:
            return
        if self._team is not None:
            self._team.end()
            self._team = None
            self._checked, self._waited = now, seconds_waited()
            return
        waited = seconds_waited()
        share = (waited - self._waited) / elapsed
        self._checked, self._waited = now, waited
        if share > CONTENDED:
            self._team = ExtraTeam(self._openmp)
            self._limited_until = now + self._hold
            self._hold = min(2 * self._hold, LONGEST_HOLD)
        elif now - self._limited_until > FIRST_HOLD:
            self._hold = FIRST_HOLD


class ExtraTeam:
    """A team of sleeping OpenMP threads, more than there are CPUs."""

    def __init__(self, openmp: ctypes.CDLL) -> None:
        self._openmp = openmp
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="spin limit", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the team; libgomp frees its threads with the thread that started it."""
        self._ended.set()
        self._thread.join()

    def _hold(self) -> None:
        cpus = len(os.sched_getaffinity(0))
        threads = max(2, cpus - torch.get_num_threads() + 2)
        nothing = ctypes.cast(self._openmp.omp_get_level, ctypes.c_void_p)  # a function without an effect
        self._openmp.GOMP_parallel(nothing, None, threads, 0)
        self._ended.wait()


def find_openmp() -> ctypes.CDLL | None:
    """Return libgomp as torch has loaded it; None with another OpenMP, or without the scheduler's statistics."""
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        (TASKS.parent / "schedstat").read_text()
    except OSError as error:
        logger.info("OpenMP threads always spin, even if CPUs are contended: %s", error)
        return None
    library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.GOMP_parallel.restype = None
    return library


def seconds_waited() -> float:
    """Return the total seconds for which this process's threads were ready to run while other tasks ran."""
    nanoseconds = 0
    for task in TASKS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            # Nanoseconds on a CPU, nanoseconds in the queue for one, and the number of time slices.
            nanoseconds += int((task / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9
