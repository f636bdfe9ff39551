"""The progress of an engine core, shared with its parent: the time of the latest, and the share of loaded weights."""

import mmap
import time
from pathlib import Path

# Name of the shared file in the core's folder, and its size in bytes: two float64.
FILE = "progress"
SIZE = 16


class ProgressClock:
    """The time of the latest progress on the system's monotonic clock, in memory or in a file that processes share.

    A hung core is detected by it.
    """

    def __init__(self, file: Path | None = None) -> None:
        """file: SIZE bytes, as `create` writes them; without one the clock belongs to this process alone."""
        memory: bytearray | mmap.mmap = bytearray(SIZE)
        if file is not None:
            with file.open("r+b") as opened:
                memory = mmap.mmap(opened.fileno(), SIZE)
        self._values = memoryview(memory).cast("d")

    @classmethod
    def create(cls, file: Path) -> "ProgressClock":
        """Return a clock in a new file, set to 0."""
        file.write_bytes(bytes(SIZE))
        return cls(file)

    def tick(self) -> None:
        """Record progress. Called in every attention layer and every step, and while a core waits for work."""
        self._values[0] = time.monotonic()

    @property
    def latest(self) -> float:
        """The time of the latest tick in seconds; 0 before the first."""
        return self._values[0]

    @property
    def loaded(self) -> float:
        """The share of the weights' tensors that are loaded, 0 to 1."""
        return self._values[1]

    @loaded.setter
    def loaded(self, share: float) -> None:
        self._values[1] = share
