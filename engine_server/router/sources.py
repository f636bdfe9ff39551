"""Sources of deployments without a cluster: flags, and the endpoints file that `fairlead up` writes."""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from engine_server.contract.api import DEFAULT_NAMESPACE, Key
from engine_server.contract.endpoints_file import EndpointsFile, FileDeployment

from .endpoints import Address, Deployment, Directory

log = logging.getLogger(__name__)

POLL = 0.25


class Source(Protocol):
    """Keeps a directory up to date. It is synced once everything known at its start is in the directory."""

    @property
    def synced(self) -> bool: ...

    async def run(self, directory: Directory) -> None: ...


def from_flags(flags: list[tuple[list[str], Address]]) -> list[Deployment]:
    """Return one deployment for each name of the `--endpoint NAME[,NAME...]=URL` flags, with all of its addresses."""
    by_name: dict[str, list[Address]] = {}
    for names, address in flags:
        for name in names:
            by_name.setdefault(name, []).append(address)
    return [Deployment(Key(DEFAULT_NAMESPACE, name), (name,), tuple(at)) for name, at in by_name.items()]


def deployment(entry: FileDeployment) -> Deployment:
    """Return an entry of the endpoints file as a deployment. Raises ValueError for a URL that is no endpoint."""
    return Deployment(
        Key(entry.namespace, entry.name),
        entry.served_names or (entry.name,),
        tuple(Address.parse(url) for url in entry.endpoints),
        entry.created.timestamp() if entry.created else 0.0,
        entry.policy,
    )


class FileSource:
    """Reads the endpoints file whenever it has changed. An invalid file leaves the deployments as they were."""

    def __init__(self, path: Path) -> None:
        self.synced = False
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: set[Key] = set()

    async def run(self, directory: Directory) -> None:
        while True:
            self.refresh(directory)
            await asyncio.sleep(POLL)

    def refresh(self, directory: Directory) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen == self._seen:
                return
            self._seen = seen
            content = EndpointsFile.decode(self._path.read_bytes())
            deployments = [deployment(entry) for entry in content.deployments]
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            log.error(
                "%s is not a valid endpoints file, its last valid content stays in force: %s",
                self._path,
                error,
            )
            return
        for each in deployments:
            directory.put(each)
        keys = {each.key for each in deployments}
        for key in self._keys - keys:
            directory.remove(key)
        self._keys = keys
        self.synced = True
