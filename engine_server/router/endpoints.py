"""The directory of deployments and their endpoints, by model name."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from engine_server.contract.api import Key
from engine_server.contract.served_names import NameClaim, holders

from .policy import POLICIES, Load, Policy


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise ValueError(f"an endpoint is http://HOST:PORT, not {url!r}")
        return cls(parts.hostname, parts.port or 80)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The part of an LLMDeployment that routing needs."""

    key: Key
    served_names: tuple[str, ...]
    addresses: tuple[Address, ...] = ()
    # Seconds since the epoch: the oldest holder keeps a contested name.
    created: float = 0.0
    # The router's default if it is None or unknown.
    policy: str | None = None
    # The source itself watches readiness: no probe is needed before the first request.
    vouched: bool = False

    @property
    def claim(self) -> NameClaim:
        return NameClaim(self.created, self.key, self.served_names)


class Endpoint:
    """One engine."""

    __slots__ = ("address", "in_flight", "live", "routes")

    def __init__(self, address: Address, live: bool) -> None:
        self.address = address
        self.live = live
        self.in_flight = 0
        self.routes: set[Route] = set()

    def mark(self, live: bool) -> None:
        self.live = live
        for route in self.routes:
            route.refresh()


class Route:
    """A deployment with its endpoints and its policy's state."""

    __slots__ = ("deployment", "endpoints", "live", "policy")

    def __init__(self, deployment: Deployment, policy: Policy, endpoints: tuple[Endpoint, ...]) -> None:
        self.deployment = deployment
        self.policy = policy
        self.endpoints = endpoints
        self.refresh()

    def refresh(self) -> None:
        self.live = tuple(endpoint for endpoint in self.endpoints if endpoint.live)

    def pick(self, load: Load[Endpoint], tried: Collection[Endpoint] = ()) -> Endpoint | None:
        candidates = tuple(e for e in self.live if e not in tried) if tried else self.live
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return self.policy.pick(candidates, load)


Notice = Callable[[Endpoint], None]


class Directory:
    """All routes, by model name. Its content never depends on the order of puts and removals."""

    def __init__(self, default_policy: str, *, on_unproven: Notice, on_gone: Notice) -> None:
        self._default_policy = default_policy
        self._on_unproven = on_unproven
        self._on_gone = on_gone
        self._routes: dict[Key, Route] = {}
        self._endpoints: dict[Address, Endpoint] = {}
        self._names: dict[str, Route] | None = {}  # None: to be computed again

    def put(self, deployment: Deployment) -> None:
        before = self._routes.get(deployment.key)
        if before is not None and before.deployment == deployment:
            return
        endpoints = tuple(self._endpoint(a, deployment.vouched) for a in dict.fromkeys(deployment.addresses))
        same = before is not None and before.deployment.policy == deployment.policy
        policy = before.policy if before and same else self._policy(deployment)
        route = self._routes[deployment.key] = Route(deployment, policy, endpoints)
        for endpoint in endpoints:
            endpoint.routes.add(route)
        if before is not None:
            self._leave(before)
        self._names = None

    def remove(self, key: Key) -> None:
        if route := self._routes.pop(key, None):
            self._leave(route)
            self._names = None

    def resolve(self, model: str) -> Route | None:
        return (self._names or self._table()).get(model)

    def models(self) -> dict[str, Route]:
        """Return the models to list: each deployment by the served names that it holds, else by NAMESPACE/NAME."""
        table = self._table()
        found: dict[str, Route] = {}
        for route in self._routes.values():
            held = [name for name in route.deployment.served_names if table[name] is route]
            for name in held or [str(route.deployment.key)]:
                if table[name] is route:
                    found[name] = route
        return dict(sorted(found.items()))

    @property
    def routes(self) -> Iterable[Route]:
        return self._routes.values()

    def _table(self) -> dict[str, Route]:
        if self._names is None:
            claims = (route.deployment.claim for route in self._routes.values())
            self._names = {name: self._routes[claim.key] for name, claim in holders(claims).items()}
        return self._names

    def _policy(self, deployment: Deployment) -> Policy:
        return POLICIES.get(deployment.policy or self._default_policy, POLICIES[self._default_policy])()

    def _endpoint(self, address: Address, vouched: bool) -> Endpoint:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._endpoints[address] = Endpoint(address, live=vouched)
            if not vouched:
                self._on_unproven(endpoint)
        return endpoint

    def _leave(self, route: Route) -> None:
        for endpoint in route.endpoints:
            endpoint.routes.discard(route)
            if not endpoint.routes:
                del self._endpoints[endpoint.address]
                self._on_gone(endpoint)
