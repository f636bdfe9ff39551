"""The interface of the sources of deployments."""

from collections.abc import Sequence
from typing import Protocol

from engine_server.contract.cluster.api import Key
from engine_server.router.metrics import WatchState
from engine_server.router.routing.directory import Deployment


class Deployments(Protocol):
    """Takes the deployments of sources: a directory, or what stands before it."""

    def put(self, deployment: Deployment) -> None:
        """Add a deployment, or replace the one with its key."""
        ...

    def remove(self, key: Key) -> None:
        """Remove the deployment with this key, if there is one."""
        ...


class Source(Protocol):
    """Keeps a directory up to date for as long as it runs."""

    @property
    def synced(self) -> bool:
        """True once everything that existed when the source started is in the directory."""
        ...

    def watches(self) -> Sequence[WatchState]:
        """Return the state of the watches that the source depends on."""
        ...

    async def run(self, directory: Deployments) -> None:
        """Apply changes to the directory until cancelled."""
        ...
