"""Where deployments come from when there is no cluster: flags, and a file that `fairlead up` writes."""

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from .endpoints import Address, Deployment, Directory, Key

log = logging.getLogger(__name__)

POLL = 0.25
DEFAULT_NAMESPACE = "default"


class Source(Protocol):
    """Keeps a directory true. It is synced once it has told all that it knew when it started."""

    @property
    def synced(self) -> bool: ...

    async def run(self, directory: Directory) -> None: ...


def from_flags(flags: list[tuple[list[str], Address]]) -> list[Deployment]:
    """`--endpoint NAME[,NAME...]=URL`: each name is a model, served by all endpoints given with it."""
    by_name: dict[str, list[Address]] = {}
    for names, address in flags:
        for name in names:
            by_name.setdefault(name, []).append(address)
    return [Deployment(Key(DEFAULT_NAMESPACE, name), (name,), tuple(at)) for name, at in by_name.items()]


class FileDeployment(msgspec.Struct, rename="camel"):
    name: str
    endpoints: list[str]
    namespace: str = DEFAULT_NAMESPACE
    served_names: list[str] = []
    policy: str | None = None
    created: datetime | None = None

    def deployment(self) -> Deployment:
        names = tuple(self.served_names) or (self.name,)
        created = self.created.timestamp() if self.created else 0.0
        addresses = tuple(Address.parse(url) for url in self.endpoints)
        return Deployment(Key(self.namespace, self.name), names, addresses, created, self.policy)


class EndpointsFile(msgspec.Struct):
    deployments: list[FileDeployment]


class FileSource:
    """Reads the file whenever it has changed. A broken one leaves what was known before."""

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
            told = msgspec.json.decode(self._path.read_bytes(), type=EndpointsFile)
            deployments = [one.deployment() for one in told.deployments]
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            log.error("%s is not as it should be, and what it said before stays: %s", self._path, error)
            return
        for deployment in deployments:
            directory.put(deployment)
        keys = {deployment.key for deployment in deployments}
        for key in self._keys - keys:
            directory.remove(key)
        self._keys = keys
        self.synced = True
