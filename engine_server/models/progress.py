"""Progress of a fetch: the bytes in its folder, out of a total that the source reports."""

import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Progress:
    # The bytes to fetch; 0 until the source has listed them, or if it cannot.
    total: int = 0
    # The folder that is being filled.
    folder: Path | None = None

    @property
    def done(self) -> int:
        """The bytes on disk, those of an interrupted attempt included."""
        files = self.folder.rglob("*") if self.folder else ()
        return sum(_size(path) for path in files)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:  # renamed or removed meanwhile
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
