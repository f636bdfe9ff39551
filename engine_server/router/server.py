"""The server of a router process: it listens, and drains before it ends."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from engine_server.contract.base.listening import EVERY_ADDRESS
from engine_server.contract.base.open_files import most_internal_connections
from engine_server.contract.cluster.demand import DEMAND_PATH
from engine_server.contract.cluster.drain import ANNOUNCE_SECONDS, DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.cluster.labels import METRICS_PORT, ROUTER_PORT
from engine_server.contract.cluster.policies import DEFAULT_POLICY
from engine_server.router.application import Application
from engine_server.router.callers.callers import Callers
from engine_server.router.callers.peers import USAGE_PATH, Peers, PeerSettings
from engine_server.router.demand_page import DemandPage
from engine_server.router.endpoints_page import EndpointsPage
from engine_server.router.exposition import PROMETHEUS_TEXT, Exposition, ProcessState
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.client_address import ClientAddresses, Network
from engine_server.router.http.clients import Clients
from engine_server.router.http.cross_origin import CrossOrigin
from engine_server.router.http.exchange import JSON
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS, REQUEST_FIELDS
from engine_server.router.http.limits import Limits
from engine_server.router.http.unread_answers import UnreadAnswers
from engine_server.router.http.upstream import Pools
from engine_server.router.internal import InternalApplication, Page
from engine_server.router.line_writer import LineWriter
from engine_server.router.metrics import Metrics
from engine_server.router.rejections import Reason, Sender
from engine_server.router.requests.access_log import AccessLog
from engine_server.router.requests.attempts import Forwarder
from engine_server.router.requests.body_packer import BodyPacker
from engine_server.router.requests.hold.hold import Hold, HoldSettings
from engine_server.router.requests.observation import Observation
from engine_server.router.requests.placement import Placement
from engine_server.router.requests.watch import Watch, WatchTimes
from engine_server.router.routing.directory import Deployment, Directory
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import DEFAULT_TIMES, Health, ProbeTimes
from engine_server.router.routing.key import DEFAULT_PREFIX_CHARS
from engine_server.router.routing.selection import Selector
from engine_server.router.sources.names import NamedEndpoints
from engine_server.router.sources.source import Source
from engine_server.shared.hosts import hosts_of

if TYPE_CHECKING:
    from engine_server.router.requests.tracing import Tracing

log = logging.getLogger(__name__)

# Of the internal port, which takes no bodies: for unfinished and pipelined heads.
INTERNAL_BUFFER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a router process."""

    # All interfaces: a router is there to be reached from outside.
    host: str = EVERY_ADDRESS
    # 0 takes a free one.
    port: int = ROUTER_PORT
    # Of metrics and internal pages; 0 takes a free one.
    metrics_port: int = METRICS_PORT
    # For deployments that do not name one.
    policy: str = DEFAULT_POLICY
    limits: Limits = field(default_factory=Limits)
    # Bytes of the bodies of all requests, of what streams hold, and of answers that clients have not taken.
    buffer_bytes: int = 256 * 1024 * 1024
    # Proxies whose `X-Forwarded-For` names the clients.
    trusted_proxies: Sequence[Network] = ()
    # Origins whose pages may call the router.
    origins: Sequence[str] = ()
    # Further names by which a router on a loopback address may be called.
    hosts: Sequence[str] = ()
    # Further header fields that are forwarded, in both directions.
    forwarded_fields: Sequence[bytes] = ()
    # Seconds after SIGTERM in which connections are still accepted.
    drain_grace: float = ANNOUNCE_SECONDS
    # Seconds after that at most, for requests in flight.
    drain_timeout: float = DEFAULT_DRAIN_TIMEOUT_SECONDS
    # Characters of the first user message, or of the prompt, by which the policy `prefix` chooses.
    prefix_chars: int = DEFAULT_PREFIX_CHARS
    probes: ProbeTimes = DEFAULT_TIMES
    watch: WatchTimes = field(default_factory=WatchTimes)
    # The other routers, with which the limits of keys are shared.
    peers: PeerSettings = field(default_factory=PeerSettings)
    # The internal pages are for routers and the operator, which send a key derived from the root key for engines.
    requires_internal_key: bool = False
    hold: HoldSettings = field(default_factory=HoldSettings)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a router process besides its metrics; None where there is none."""

    # The lines of `logging` and of the access log.
    lines: LineWriter | None = None
    access_log: AccessLog | None = None
    tracing: "Tracing | None" = None


class Server:
    """Accepts connections and runs the sources of deployments."""

    def __init__(
        self,
        settings: Settings,
        deployments: Iterable[Deployment],
        sources: Sequence[Source],
        callers: Callers,
        outputs: Outputs | None = None,
    ) -> None:
        """Route requests of `callers` to `deployments`, and to those that the sources add."""
        self._settings = settings
        self._sources = sources
        self._callers = callers
        self._peers = Peers(settings.peers, callers.ledger, callers.engine_credentials)
        self._leaving = asyncio.Event()
        self._aborting = asyncio.Event()
        self._announce_seconds = 0.0
        self._pools = Pools(ANSWER_FIELDS.with_more(settings.forwarded_fields))
        self._health = Health(settings.probes)
        self._watch = Watch(self._health, settings.watch)
        self._packer = BodyPacker(self._watch.open)
        self._directory = Directory(settings.policy, on_added=self._health.add, on_removed=self._forget)
        self._endpoints = NamedEndpoints(self._directory)
        for deployment in deployments:
            self._endpoints.put(deployment)
        self._hold = Hold(settings.hold, self._directory, self._health)
        metrics = Metrics()
        self._outputs = outputs = outputs or Outputs()
        observation = Observation(metrics, outputs.access_log, outputs.tracing)
        budget = BodyBudget(settings.buffer_bytes)
        selector = Selector(self._health)
        forwarder = Forwarder(
            callers,
            Placement(self._directory, self._health, selector, self._hold),
            selector,
            self._hold,
            self._watch,
            self._pools,
            observation,
            budget,
            settings.prefix_chars,
        )
        process = ProcessState(
            watches=lambda: chain.from_iterable(source.watches() for source in sources),
            buffer_bytes=lambda: budget.used,
            forgotten_bodies=lambda: budget.forgotten,
            dropped_lines=lambda: 0 if outputs.lines is None else outputs.lines.dropped,
        )
        exposition = Exposition(
            metrics, self._directory, self._health, callers.ledger, self._hold.counts, process
        )
        hosts = hosts_of(settings.host, settings.hosts)
        cross_origin = CrossOrigin(settings.origins) if settings.origins else None
        application = Application(
            forwarder,
            callers,
            self._directory,
            self._readiness,
            observation,
            cross_origin,
            ClientAddresses(settings.trusted_proxies),
            hosts,
        )
        internal = InternalApplication(
            {
                b"/metrics": Page(PROMETHEUS_TEXT, exposition.text),
                USAGE_PATH.encode(): Page(JSON, callers.usage),
                DEMAND_PATH.encode(): Page(
                    JSON, DemandPage(metrics.demand, self._directory, self._hold.counts).render
                ),
                b"/internal/endpoints": Page(JSON, EndpointsPage(self._directory, self._health).render),
            },
            metrics.rejections,
            hosts,
            callers.engine_credentials.accepts_internal if settings.requires_internal_key else None,
        )
        limits = replace(settings.limits, body=min(settings.limits.body, budget.largest_body))
        forwarded = REQUEST_FIELDS.with_more(settings.forwarded_fields)
        unread = UnreadAnswers(budget, lambda: metrics.rejections.add(Sender.CLIENT, Reason.UNREAD_ANSWER))
        self._clients = Clients(application, limits, budget, unread, metrics.rejections, forwarded)
        self._internal_clients = Clients(
            internal,
            replace(limits, body=0, connections=most_internal_connections(limits.connections)),
            BodyBudget(INTERNAL_BUFFER_BYTES),
            unread,
            metrics.rejections,
        )

    async def run(self, on_listening: Callable[[int, int], None]) -> None:
        """Serve until `leave` is called, then drain. `on_listening` is called with the port and the metrics port."""
        host, port, metrics_port = self._settings.host, self._settings.port, self._settings.metrics_port
        listener = self._clients.listen(host, port)
        internal = self._internal_clients.listen(host, metrics_port)
        on_listening(listener.port, internal.port)
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(source.run(self._endpoints)) for source in self._sources]
            background += [tasks.create_task(c.sweep()) for c in (self._clients, self._internal_clients)]
            for part in (self._endpoints, self._hold, self._callers, self._peers, self._watch, self._packer):
                background.append(tasks.create_task(part.run()))
            await self._leaving.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._announce_seconds):
                    await self._aborting.wait()
            await listener.close()
            deployments = [route.deployment for route in self._directory.routes]
            await self._clients.drain(drain_seconds(self._settings.drain_timeout, deployments))
            self._hold.close()
            self._clients.abort()
            await internal.close()
            self._internal_clients.abort()
            for task in background:
                task.cancel()
        if self._outputs.access_log is not None:
            self._outputs.access_log.flush()
        if self._outputs.tracing is not None:
            await asyncio.to_thread(self._outputs.tracing.close)

    def leave(self, announce_seconds: float) -> None:
        """Drain after accepting connections for `announce_seconds` more; a second call aborts all connections."""
        if self._leaving.is_set():
            self._aborting.set()
            self._clients.abort()
            return
        log.warning("draining")
        self._leaving.set()
        self._announce_seconds = announce_seconds
        self._clients.leave()

    def _readiness(self) -> str:
        if self._leaving.is_set():
            return "draining"
        synced = self._endpoints.synced and all(source.synced for source in self._sources)
        return "ready" if synced else "starting"

    def _forget(self, endpoint: Endpoint) -> None:
        self._health.remove(endpoint)
        self._pools.remove(endpoint)


def drain_seconds(limit: float, deployments: Iterable[Deployment]) -> float:
    """Return the longest drain timeout of the deployments, at most `limit`, which holds where one is unknown."""
    timeouts = [limit if one.drain_timeout is None else one.drain_timeout for one in deployments]
    return min(limit, max(timeouts, default=limit))
