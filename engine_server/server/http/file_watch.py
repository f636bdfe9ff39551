"""Files that are read again when they change, such as keys and certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
# Modification time in nanoseconds, size, device and inode; None for a missing file.
Signature = tuple[tuple[int, int, int, int] | None, ...]


class FileWatch:
    """Calls `reload` after any of the files has changed, also by a replaced link, as Kubernetes updates a volume.

    A reload that raises ValueError is logged, and the state before it stays in force until the next change.
    """

    def __init__(self, files: Sequence[Path], reload: Callable[[], None]) -> None:
        self._files = files
        self._reload = reload
        self._seen = signature(files)

    async def run(self) -> None:
        """Watch until this task is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.check()

    def check(self) -> None:
        current = signature(self._files)
        if current == self._seen:
            return
        self._seen = current
        names = ", ".join(str(file) for file in self._files)
        try:
            self._reload()
        except ValueError as error:
            logger.error("%s changed and can't be used, so nothing changes: %s", names, error)
        else:
            logger.info("%s changed and was read again", names)


def signature(files: Sequence[Path]) -> Signature:
    found: list[tuple[int, int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_dev, status.st_ino))
    return tuple(found)
