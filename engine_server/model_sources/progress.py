"""Progress of a fetch: the bytes that have arrived, out of a total that the source reports."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(slots=True)
class Progress:
    # The bytes to fetch; 0 until the source has listed them, or if it cannot.
    total: int = 0
    # Returns the bytes that have arrived.
    count: Callable[[], int] = int

    @property
    def done(self) -> int:
        return self.count()

    def follow(self, folder: Path) -> None:
        """Count the bytes in a folder, those of an interrupted attempt included."""
        self.count = partial(bytes_in, folder)

    def follow_growth(self, folder: Path) -> None:
        """Count the bytes that are added to a folder."""
        before = bytes_in(folder)
        self.count = lambda: max(0, bytes_in(folder) - before)


def bytes_in(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*"))


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:  # renamed or removed meanwhile
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
