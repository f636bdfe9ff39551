"""The router as a process: it listens, and it leaves without dropping anybody."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import ROUTER_PORT

from .application import Application
from .downstream import Downstream, Limits
from .endpoints import Deployment, Directory, Endpoint
from .forward import Forwarder
from .health import Health
from .metrics import Exposition, Metrics
from .policy import DEFAULT_POLICY
from .sources import Source
from .upstream import Pools

log = logging.getLogger(__name__)

SWEEP = 5.0
QUIET_LIMIT = 60.0  # between requests, and between two pieces of one


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "0.0.0.0"  # noqa: S104 - a router is there to be reached
    port: int = ROUTER_PORT
    policy: str = DEFAULT_POLICY
    limits: Limits = field(default_factory=Limits)
    drain_timeout: float = DEFAULT_DRAIN_TIMEOUT_SECONDS


class Server:
    def __init__(
        self, settings: Settings, deployments: Iterable[Deployment], sources: Sequence[Source]
    ) -> None:
        """Endpoints that are known, and sources of others."""
        self._settings = settings
        self._sources = sources
        self._clients: set[Downstream] = set()
        self._leaving = asyncio.Event()
        self._grace = 0.0
        self._pools = Pools()
        metrics = Metrics()
        self._health = Health(metrics)
        self._directory = Directory(settings.policy, on_unproven=self._health.watch, on_gone=self._forget)
        for deployment in deployments:
            self._directory.put(deployment)
        forwarder = Forwarder(self._directory, self._pools, self._health, metrics)
        exposition = Exposition(metrics, lambda: self._directory.routes)
        self._application = Application(forwarder, self._directory, exposition, self._readiness)

    async def run(self, on_listening: Callable[[int], None]) -> None:
        """Serve until told to leave, then drain. `on_listening` hears the port."""
        listener = await asyncio.get_running_loop().create_server(
            self._accept, self._settings.host, self._settings.port, backlog=4096
        )
        on_listening(listener.sockets[0].getsockname()[1])
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(source.run(self._directory)) for source in self._sources]
            background.append(tasks.create_task(self._sweep()))
            await self._leaving.wait()
            await asyncio.sleep(self._grace)
            listener.close()
            await self._drain()
            for task in background:
                task.cancel()

    def leave(self, grace: float) -> None:
        """Drain, after accepting for `grace` seconds more; told again, don't wait for anybody."""
        if self._leaving.is_set():
            self._abandon_clients()
            return
        log.warning("draining")
        self._leaving.set()
        self._grace = grace
        for client in self._clients:
            client.closing = True

    async def _drain(self) -> None:
        for client in [*self._clients]:
            client.leave_when_idle()
        if self._clients:
            await asyncio.wait([c.gone for c in self._clients], timeout=self._settings.drain_timeout)
        self._abandon_clients()

    def _abandon_clients(self) -> None:
        if self._clients:
            log.warning("%d connections are cut off", len(self._clients))
        for client in [*self._clients]:
            client.abandon()

    async def _sweep(self) -> None:
        """Close clients that have been quiet for too long."""
        while True:
            await asyncio.sleep(SWEEP)
            limit = asyncio.get_running_loop().time() - QUIET_LIMIT
            for client in [*self._clients]:
                if client.quiet_since < limit:
                    client.abandon()

    def _readiness(self) -> str:
        if self._leaving.is_set():
            return "draining"
        return "ready" if all(source.synced for source in self._sources) else "starting"

    def _accept(self) -> Downstream:
        client = Downstream(self._application.answer, self._settings.limits)
        client.closing = self._leaving.is_set()
        self._clients.add(client)
        client.gone.add_done_callback(lambda _: self._clients.discard(client))
        return client

    def _forget(self, endpoint: Endpoint) -> None:
        self._health.forget(endpoint)
        if pool := self._pools.pop(endpoint, None):
            pool.close()
