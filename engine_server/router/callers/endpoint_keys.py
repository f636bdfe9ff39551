"""The keys of engines that know no router: each in a file, from which the router takes it as it is."""

import asyncio
import re
from pathlib import Path

from engine_server.router.watched_file import POLL_SECONDS, WatchedFile

KEY_PATTERN = re.compile(rb"[!-~]+")


class EndpointKeys:
    """The header lines with the keys of endpoints, by the files that have the keys, which are followed."""

    def __init__(self) -> None:
        self._files: dict[Path, KeyFile] = {}

    def load(self, path: Path) -> None:
        """Read a file. Raises ValueError if it has no key."""
        self._files[path] = key_file = KeyFile(path)
        key_file.file.load(key_file.apply)

    def line(self, path: Path) -> bytes:
        """Return the line with the key of a file, which is read in the first call; b"" if it has never had one."""
        key_file = self._files.get(path)
        if key_file is None:
            key_file = self._files[path] = KeyFile(path)
            key_file.file.refresh(key_file.apply)
        return key_file.line

    async def run(self) -> None:
        """Follow changes of the files until cancelled."""
        while True:
            for key_file in self._files.values():
                key_file.file.refresh(key_file.apply)
            await asyncio.sleep(POLL_SECONDS)


class KeyFile:
    """One file with a key in its only line."""

    def __init__(self, path: Path) -> None:
        self.file = WatchedFile(path)
        self.line = b""

    def apply(self, content: bytes) -> None:
        """Take the key in the content. Raises ValueError if there is none."""
        key = content.strip()
        if not KEY_PATTERN.fullmatch(key):
            raise ValueError("it takes one line with a key of printable ASCII" if key else "it has no key")
        self.line = b"Authorization: Bearer %b\r\n" % key
