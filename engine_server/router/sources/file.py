"""Deployments from the endpoints file that `fairlead up` writes."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.endpoints_file import EndpointsFile, FileAdapter, FileDeployment
from engine_server.router.metrics import WatchState
from engine_server.router.routing.directory import Adapter, Deployment
from engine_server.router.routing.endpoint import READY_PATH, parse_engine_address, parse_ready_path
from engine_server.router.sources.source import Deployments
from engine_server.router.watched_file import POLL_SECONDS, WatchedFile

log = logging.getLogger(__name__)


def to_deployment(
    entry: FileDeployment, folder: Path, ready_path: str = READY_PATH, key_file: Path | None = None
) -> Deployment:
    """Return an entry of the endpoints file in `folder` as a deployment.

    ready_path, key_file: for an entry that has none. Raises ValueError for an address or a path of another form.
    """
    return Deployment(
        Key(entry.namespace, entry.name),
        entry.served_names or (entry.name,),
        tuple(parse_engine_address(url) for url in entry.endpoints),
        entry.created.timestamp() if entry.created else 0.0,
        entry.policy,
        known_to_engines=True,
        adapters=tuple(to_adapter(adapter) for adapter in entry.adapters),
        ready_path=parse_ready_path(entry.ready_path or ready_path),
        key_file=folder / entry.endpoint_key_file if entry.endpoint_key_file else key_file,
    )


def to_adapter(entry: FileAdapter) -> Adapter:
    """Return an adapter of the endpoints file. Raises ValueError for an address of another form."""
    addresses = tuple(parse_engine_address(url) for url in entry.endpoints)
    return Adapter(entry.name, addresses, error="" if addresses else entry.error or "")


class FileSource:
    """Reads the endpoints file whenever it has changed. An invalid file leaves the deployments as they were."""

    def __init__(self, path: Path, ready_path: str = READY_PATH, key_file: Path | None = None) -> None:
        """ready_path, key_file: those of deployments for which the file has none."""
        self.synced = False
        self._file = WatchedFile(path)
        self._ready_path = ready_path
        self._key_file = key_file
        self._keys: set[Key] = set()

    def watches(self) -> Sequence[WatchState]:
        """Return nothing: a file needs no watch."""
        return ()

    async def run(self, directory: Deployments) -> None:
        """Poll the file for changes until cancelled."""
        while True:
            self.refresh(directory)
            await asyncio.sleep(POLL_SECONDS)

    def refresh(self, directory: Deployments) -> None:
        """Apply the file to the directory if it has changed since the last call."""
        try:
            content = self._file.read_if_changed()
            if content is None:
                return
            deployments = [
                to_deployment(entry, self._file.path.parent, self._ready_path, self._key_file)
                for entry in EndpointsFile.decode(content).deployments
            ]
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            log.error(
                "%s is not a valid endpoints file, its last valid content stays in force: %s",
                self._file.path,
                error,
            )
            return
        for deployment in deployments:
            directory.put(deployment)
        keys = {deployment.key for deployment in deployments}
        for key in self._keys - keys:
            directory.remove(key)
        self._keys = keys
        self.synced = True
