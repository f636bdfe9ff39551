"""The directory of deployments, their adapters and their endpoints, by model name. Liveness is health's."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim
from engine_server.contract.wire.router_head import REPORT_TOKENS_LINE, recipient_lines
from engine_server.router.obstacle import UNKNOWN, Obstacle
from engine_server.router.routing.endpoint import READY_PATH, Endpoint, EngineAddress
from engine_server.router.routing.name_table import NameTable
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.retry_budget import RetryBudget
from engine_server.router.routing.waker import Waker


class Target(NamedTuple):
    """The identity of what a model name means: a deployment, or one of its adapters."""

    deployment: Key
    # Empty: the deployment's own model.
    adapter: str = ""

    def __str__(self) -> str:
        return f"{self.deployment} {self.adapter}".rstrip()


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of a deployment."""

    name: str
    # The engines that have it: some of the deployment's.
    addresses: tuple[EngineAddress, ...] = ()
    # Identifies its content; empty if the source does not know.
    hash: str = ""
    # Why no engine can serve it, for the log; empty while one does, or may do soon.
    error: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The part of an LLMDeployment that routing needs."""

    key: Key
    served_names: tuple[str, ...]
    addresses: tuple[EngineAddress, ...] = ()
    # Seconds since the epoch: the oldest holder keeps a contested name.
    created: float = 0.0
    # The router's default if it is None or unknown.
    policy: str | None = None
    # The time in seconds in which a stopping replica may finish its requests; None if the source does not know.
    drain_timeout: float | None = None
    # The source itself watches readiness: no probe is needed before the first request.
    vouched: bool = False
    # That of the LLMDeployment in a cluster.
    uid: str = ""
    # The engines know the key: with `Fairlead-Deployment` they answer for this deployment alone.
    known_to_engines: bool = False
    # Its engines get the credentials of clients where the router has none for them.
    takes_credentials: bool = True
    # Why no replica is ready, if none is.
    obstacle: Obstacle = UNKNOWN
    # Set while the deployment has zero replicas and may be scaled up.
    waker: Waker | None = None
    adapters: tuple[Adapter, ...] = ()
    # The path at which its engines answer 200 while they take requests.
    ready_path: str = READY_PATH
    # The file with the key that its engines take; None: they take the router's, or the clients'.
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A deployment or one of its adapters, as it was put last, with its endpoints and the deployment's policy."""

    target: Target
    deployment: Deployment
    policy: Policy
    # Requests that were sent where a ring chose, by whether that was the key's own endpoint. Counted since the policy
    # was made.
    ring_picks: Counter[bool]
    # Of the deployment's retries, those for its adapters included.
    budget: RetryBudget
    # Those that can answer: of an adapter, the engines that have it.
    endpoints: tuple[Endpoint, ...]
    # All of the deployment.
    replicas: tuple[Endpoint, ...]
    # Header lines that the engines get with each request.
    request_lines: bytes
    # None: the deployment's own model.
    adapter: Adapter | None = None
    # Of the deployment's own model: the routes of its adapters, by name.
    adapters: Mapping[str, "Route"] = field(default_factory=dict)
    # Endpoints that answered that they lack the adapter, with the time (perf_counter) until which that counts.
    lacking: dict[Endpoint, float] = field(default_factory=dict)

    @property
    def claim(self) -> NameClaim:
        """The model names that the deployment or the adapter asks for."""
        deployment, name = self.deployment, self.target.adapter
        return NameClaim(
            deployment.created, deployment.key, (name,) if name else deployment.served_names, name
        )


class Directory:
    """All routes, by model name. Its content never depends on the order of puts and removals.

    `on_added` is called with each new endpoint and whether its source vouches for its readiness, `on_removed` with
    each endpoint that its deployment has no more.
    """

    def __init__(
        self,
        default_policy: str,
        *,
        on_added: Callable[[Endpoint, bool], None],
        on_removed: Callable[[Endpoint], None],
    ) -> None:
        self._default_policy = default_policy
        self._on_added = on_added
        self._on_removed = on_removed
        self._routes: dict[Key, Route] = {}
        self._by_namespace: defaultdict[str, dict[Key, Route]] = defaultdict(dict)
        self._names: NameTable[Route] = NameTable()

    def put(self, deployment: Deployment) -> None:
        """Add a deployment, or replace the one with its key."""
        before = self._routes.get(deployment.key)
        if before is not None and before.deployment == deployment:
            return
        known = {endpoint.address: endpoint for endpoint in before.endpoints} if before else {}
        endpoints = tuple(
            known.pop(address) if address in known else self._new_endpoint(deployment, address)
            for address in dict.fromkeys(deployment.addresses)
        )
        for endpoint in endpoints:
            endpoint.ready_path = deployment.ready_path
        if before is not None and (before.deployment.policy, before.endpoints) == (
            deployment.policy,
            endpoints,
        ):
            policy, ring_picks = before.policy, before.ring_picks
        else:
            policy, ring_picks = self._new_policy(deployment, endpoints), Counter()
        budget = before.budget if before else RetryBudget()
        route = new_route(deployment, policy, ring_picks, budget, endpoints)
        self._routes[deployment.key] = self._by_namespace[deployment.key.namespace][deployment.key] = route
        forget_fingerprints(endpoints, before.deployment.adapters if before else (), deployment.adapters)
        for endpoint in known.values():
            self._on_removed(endpoint)
        self._names.change(claims_of(before), {each.claim: each for each in with_adapters(route)})

    def remove(self, key: Key) -> None:
        """Remove the deployment with this key, if there is one."""
        if route := self._routes.pop(key, None):
            for endpoint in route.endpoints:
                self._on_removed(endpoint)
            del self._by_namespace[key.namespace][key]
            if not self._by_namespace[key.namespace]:
                del self._by_namespace[key.namespace]
            self._names.change(claims_of(route), {})

    def resolve(self, model: str) -> Route | None:
        """Return the route that a model name means."""
        return self._names.get(model)

    def route(self, target: Target) -> Route | None:
        """Return the route of a deployment or an adapter."""
        route = self._routes.get(target.deployment)
        if route is None or not target.adapter:
            return route
        return route.adapters.get(target.adapter)

    def models(self) -> dict[str, Route]:
        """Return the models to list: deployments and adapters by the names that `names` returns."""
        return {name: route for name in self._names.listed() if (route := self.resolve(name)) is not None}

    def listed(self) -> Iterator[str]:
        """Yield the names of `models`, without making the whole list."""
        return self._names.listed()

    def of_namespace(self, namespace: str) -> Iterator[Route]:
        """Yield the routes of a namespace's deployments and adapters."""
        for route in self._by_namespace.get(namespace, {}).values():
            yield from with_adapters(route)

    def names(self, route: Route) -> Sequence[str]:
        """Return the served names that a deployment holds, else NAMESPACE/NAME.

        Of an adapter it is its name, else NAMESPACE/ADAPTER, and nothing if an older one holds both.
        """
        return self._names.listed_of(route.claim)

    @property
    def routes(self) -> Iterable[Route]:
        """The routes of all deployments, without those of their adapters."""
        return self._routes.values()

    def targets(self) -> set[Target]:
        """Return all deployments and adapters."""
        return {route.target for route in self._all_routes()}

    def _all_routes(self) -> Iterator[Route]:
        for route in self._routes.values():
            yield from with_adapters(route)

    def _new_policy(self, deployment: Deployment, endpoints: Sequence[Endpoint]) -> Policy:
        new = POLICIES.get(deployment.policy or self._default_policy, POLICIES[self._default_policy])
        return new(endpoints)

    def _new_endpoint(self, deployment: Deployment, address: EngineAddress) -> Endpoint:
        endpoint = Endpoint(deployment.key, address)
        self._on_added(endpoint, deployment.vouched)
        return endpoint


def with_adapters(route: Route) -> Iterator[Route]:
    """Yield a deployment's route, and those of its adapters."""
    yield route
    yield from route.adapters.values()


def claims_of(route: Route | None) -> list[NameClaim]:
    """Return the claims of a deployment and its adapters."""
    return [] if route is None else [each.claim for each in with_adapters(route)]


def new_route(
    deployment: Deployment,
    policy: Policy,
    ring_picks: Counter[bool],
    budget: RetryBudget,
    endpoints: tuple[Endpoint, ...],
) -> Route:
    """Return the route of a deployment with those of its adapters."""
    known = str(deployment.key) if deployment.known_to_engines else None
    adapters = {
        adapter.name: Route(
            Target(deployment.key, adapter.name),
            deployment,
            policy,
            ring_picks,
            budget,
            tuple(endpoint for endpoint in endpoints if endpoint.address in adapter.addresses),
            endpoints,
            REPORT_TOKENS_LINE + recipient_lines(known, adapter.name),
            adapter,
        )
        for adapter in deployment.adapters
        if is_field_value(adapter.name)
    }
    target = Target(deployment.key)
    return Route(
        target,
        deployment,
        policy,
        ring_picks,
        budget,
        endpoints,
        endpoints,
        REPORT_TOKENS_LINE + recipient_lines(known, None),
        adapters=adapters,
    )


def is_field_value(name: str) -> bool:
    """Return True for a name that the value of a header field can be. Others never reach an engine."""
    return bool(name) and name.isascii() and name.isprintable() and name.strip() == name


def forget_fingerprints(
    endpoints: Iterable[Endpoint], before: Sequence[Adapter], after: Sequence[Adapter]
) -> None:
    """Forget what endpoints reported of adapters that were changed or removed."""
    changed = {adapter.name for adapter in {*before} - {*after}}
    for endpoint in endpoints:
        for name in changed:
            endpoint.fingerprints.pop(name, None)
