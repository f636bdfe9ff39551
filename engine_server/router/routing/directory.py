"""The directory of deployments and their endpoints, by model name. Liveness is health's."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine_server.contract.api import Key
from engine_server.contract.headers import DEPLOYMENT, REPORT_TOKENS
from engine_server.contract.served_names import NameClaim, holders
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.waker import Waker


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
    # The time in seconds in which a stopping replica may finish its requests; None if the source does not know.
    drain_timeout: float | None = None
    # The source itself watches readiness: no probe is needed before the first request.
    vouched: bool = False
    # That of the LLMDeployment in a cluster.
    uid: str = ""
    # The engines know the key: with `Fairlead-Deployment` they answer for this deployment alone.
    known_to_engines: bool = False
    # Why no replica is ready, as the source reports it; empty if it does not.
    reason: str = ""
    # No replica will come until the deployment is changed.
    cannot_start: bool = False
    # Set while the deployment has zero replicas and may be scaled up.
    waker: Waker | None = None

    @property
    def claim(self) -> NameClaim:
        """The model names that the deployment asks for."""
        return NameClaim(self.created, self.key, self.served_names)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A deployment, as it was put last, with its endpoints and its policy."""

    deployment: Deployment
    policy: Policy
    endpoints: tuple[Endpoint, ...]
    # Header lines that the engines get with each request.
    request_lines: bytes


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
        # None: to be computed again.
        self._names: dict[str, Route] | None = {}

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
        if before is not None and (before.deployment.policy, before.endpoints) == (
            deployment.policy,
            endpoints,
        ):
            policy = before.policy
        else:
            policy = self._new_policy(deployment, endpoints)
        lines = f"{REPORT_TOKENS}: 1\r\n"
        if deployment.known_to_engines:
            lines += f"{DEPLOYMENT}: {deployment.key}\r\n"
        self._routes[deployment.key] = Route(deployment, policy, endpoints, lines.encode())
        for endpoint in known.values():
            self._on_removed(endpoint)
        self._names = None

    def remove(self, key: Key) -> None:
        """Remove the deployment with this key, if there is one."""
        if route := self._routes.pop(key, None):
            for endpoint in route.endpoints:
                self._on_removed(endpoint)
            self._names = None

    def resolve(self, model: str) -> Route | None:
        """Return the route that a model name means."""
        return (self._names or self._table()).get(model)

    def route(self, key: Key) -> Route | None:
        """Return the route of a deployment."""
        return self._routes.get(key)

    def models(self) -> dict[str, Route]:
        """Return the models to list: each deployment by the served names that it holds, else by NAMESPACE/NAME."""
        table = self._table()
        listed: dict[str, Route] = {}
        for route in self._routes.values():
            held = [name for name in route.deployment.served_names if table[name] is route]
            for name in held or [str(route.deployment.key)]:
                if table[name] is route:
                    listed[name] = route
        return dict(sorted(listed.items()))

    @property
    def routes(self) -> Iterable[Route]:
        """The routes of all deployments."""
        return self._routes.values()

    def _table(self) -> dict[str, Route]:
        if self._names is None:
            claims = (route.deployment.claim for route in self._routes.values())
            self._names = {name: self._routes[claim.key] for name, claim in holders(claims).items()}
        return self._names

    def _new_policy(self, deployment: Deployment, endpoints: Sequence[Endpoint]) -> Policy:
        new = POLICIES.get(deployment.policy or self._default_policy, POLICIES[self._default_policy])
        return new(endpoints)

    def _new_endpoint(self, deployment: Deployment, address: Address) -> Endpoint:
        endpoint = Endpoint(deployment.key, address)
        self._on_added(endpoint, deployment.vouched)
        return endpoint
