"""A file that is read again whenever it changes, such as one of a mounted Secret."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25


class WatchedFile:
    """Reads a file only when it has changed since the last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Modification time in ns, inode and size of the content that was read last.
        self._version: tuple[int, int, int] | None = None
        self._failure = ""

    def read_if_changed(self) -> bytes | None:
        """Return the content, or None if it is the same as in the last call. Raises OSError."""
        stat = self.path.stat()
        version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if version == self._version:
            return None
        self._version = version
        return self.path.read_bytes()

    def load(self, apply: Callable[[bytes], None]) -> None:
        """Apply the content for the first time. Raises ValueError, which names the file, if that is not possible."""
        try:
            apply(self.read_if_changed() or b"")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path}: {reason(error)}") from None

    async def follow(self, apply: Callable[[bytes], None]) -> None:
        """Call `apply` with each new content until cancelled; it raises ValueError for one that is not valid."""
        while True:
            self.refresh(apply)
            await asyncio.sleep(POLL_SECONDS)

    def refresh(self, apply: Callable[[bytes], None]) -> None:
        """Apply the content if it has changed. If it can't be read or is not valid, the previous one stays in force."""
        try:
            content = self.read_if_changed()
            if content is None:
                return
            apply(content)
            self._failure = ""
        except (OSError, ValueError) as error:
            failure = reason(error)
            if failure != self._failure:
                log.error("%s: its last valid content stays in force: %s", self.path, failure)
            self._failure = failure


def reason(error: OSError | ValueError) -> str:
    """Return the text of an error, without the path that errors of files repeat."""
    return (error.strerror or "") if isinstance(error, OSError) else str(error)
