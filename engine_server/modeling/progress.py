"""The clock by which a hung engine core is detected: the time of its latest progress, shared with its parent."""

import mmap
import time
from pathlib import Path

# Name of the shared file in the core's folder, and its size in bytes: one float64.
FILE = "progress"
SIZE = 8


class ProgressClock:
    """The time of the latest progress on the system's monotonic clock, in memory or in a file that processes share."""

    def __init__(self, file: Path | None = None) -> None:
        """file: SIZE bytes, as `create` writes them; without one the clock belongs to this process alone."""
        memory: bytearray | mmap.mmap = bytearray(SIZE)
        if file is not None:
            with file.open("r+b") as opened:
                memory = mmap.mmap(opened.fileno(), SIZE)
        self._latest = memoryview(memory).cast("d")

    @classmethod
    def create(cls, file: Path) -> "ProgressClock":
        """Return a clock in a new file, set to 0."""
        file.write_bytes(bytes(SIZE))
        return cls(file)

    def tick(self) -> None:
        """Record progress. Called in every attention layer and every step, and while a core waits for work."""
        self._latest[0] = time.monotonic()

    @property
    def latest(self) -> float:
        """The time of the latest tick in seconds; 0 before the first."""
        return self._latest[0]
