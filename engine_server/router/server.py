"""The server of a router process: it listens, and drains before it ends."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import ROUTER_PORT
from engine_server.router.application import Application
from engine_server.router.exposition import Exposition
from engine_server.router.http.downstream import ClientConnection, Limits
from engine_server.router.http.upstream import Pools
from engine_server.router.metrics import Metrics
from engine_server.router.requests.attempts import Forwarder
from engine_server.router.routing.directory import Deployment, Directory
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.policies.registry import DEFAULT_POLICY
from engine_server.router.sources.source import Source

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 4096
SWEEP_INTERVAL_SECONDS = 5.0
# Longest pause between two requests of a client, and between two pieces of one.
IDLE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a router process."""

    # All interfaces: a router is there to be reached from outside.
    host: str = "0.0.0.0"  # noqa: S104
    # 0 takes a free one.
    port: int = ROUTER_PORT
    # For deployments that do not name one.
    policy: str = DEFAULT_POLICY
    limits: Limits = field(default_factory=Limits)
    # Seconds.
    drain_timeout: float = DEFAULT_DRAIN_TIMEOUT_SECONDS


class Server:
    """Accepts connections and runs the sources of deployments."""

    def __init__(
        self, settings: Settings, deployments: Iterable[Deployment], sources: Sequence[Source]
    ) -> None:
        """Route to `deployments`, and to those that the sources add."""
        self._settings = settings
        self._sources = sources
        self._clients: set[ClientConnection] = set()
        self._leaving = asyncio.Event()
        self._announce_seconds = 0.0
        self._pools = Pools()
        self._health = Health()
        self._directory = Directory(settings.policy, on_added=self._health.add, on_removed=self._forget)
        for deployment in deployments:
            self._directory.put(deployment)
        metrics = Metrics()
        forwarder = Forwarder(self._directory, self._health, self._pools, metrics)
        exposition = Exposition(metrics, self._directory, self._health)
        self._application = Application(forwarder, self._directory, exposition, self._readiness)

    async def run(self, on_listening: Callable[[int], None]) -> None:
        """Serve until `leave` is called, then drain. `on_listening` is called with the port."""
        listener = await asyncio.get_running_loop().create_server(
            self._accept, self._settings.host, self._settings.port, backlog=LISTEN_BACKLOG
        )
        on_listening(listener.sockets[0].getsockname()[1])
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(source.run(self._directory)) for source in self._sources]
            background.append(tasks.create_task(self._close_idle_clients()))
            await self._leaving.wait()
            await asyncio.sleep(self._announce_seconds)
            listener.close()
            await self._drain()
            for task in background:
                task.cancel()

    def leave(self, announce_seconds: float) -> None:
        """Drain after accepting connections for `announce_seconds` more; a second call aborts all connections."""
        if self._leaving.is_set():
            self._abort_clients()
            return
        log.warning("draining")
        self._leaving.set()
        self._announce_seconds = announce_seconds
        for client in self._clients:
            client.closing = True

    async def _drain(self) -> None:
        for client in [*self._clients]:
            client.close_when_idle()
        if self._clients:
            closed = [client.closed for client in self._clients]
            await asyncio.wait(closed, timeout=self._settings.drain_timeout)
        self._abort_clients()

    def _abort_clients(self) -> None:
        if self._clients:
            log.warning("aborting %d connections", len(self._clients))
        for client in [*self._clients]:
            client.abort()

    async def _close_idle_clients(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_SECONDS)
            limit = asyncio.get_running_loop().time() - IDLE_LIMIT_SECONDS
            for client in [*self._clients]:
                if client.idle_since < limit:
                    client.abort()

    def _readiness(self) -> str:
        if self._leaving.is_set():
            return "draining"
        return "ready" if all(source.synced for source in self._sources) else "starting"

    def _accept(self) -> ClientConnection:
        client = ClientConnection(self._application.answer, self._settings.limits)
        client.closing = self._leaving.is_set()
        self._clients.add(client)
        client.closed.add_done_callback(lambda _: self._clients.discard(client))
        return client

    def _forget(self, endpoint: Endpoint) -> None:
        self._health.remove(endpoint)
        self._pools.remove(endpoint)
