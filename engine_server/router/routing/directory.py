"""The directory of deployments and their endpoints, by model name. Liveness is health's."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine_server.contract.api import Key
from engine_server.contract.served_names import NameClaim, holders
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.registry import POLICIES


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
        """The model names that the deployment asks for."""
        return NameClaim(self.created, self.key, self.served_names)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A deployment, as it was put last, with its endpoints and its policy."""

    deployment: Deployment
    policy: Policy
    endpoints: tuple[Endpoint, ...]


class Directory:
    """All routes, by model name. Its content never depends on the order of puts and removals.

    `on_added` is called with each new endpoint and whether its source vouches for its readiness, `on_removed` with
    each endpoint that no deployment has any more.
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
        self._endpoints: dict[Address, Endpoint] = {}
        # The number of routes that have an endpoint.
        self._uses: Counter[Endpoint] = Counter()
        # None: to be computed again.
        self._names: dict[str, Route] | None = {}

    def put(self, deployment: Deployment) -> None:
        """Add a deployment, or replace the one with its key."""
        before = self._routes.get(deployment.key)
        if before is not None and before.deployment == deployment:
            return
        endpoints = tuple(self._endpoint(a, deployment.vouched) for a in dict.fromkeys(deployment.addresses))
        if before is not None and before.deployment.policy == deployment.policy:
            policy = before.policy
        else:
            policy = self._new_policy(deployment)
        self._routes[deployment.key] = Route(deployment, policy, endpoints)
        self._uses.update(endpoints)
        if before is not None:
            self._release(before)
        self._names = None

    def remove(self, key: Key) -> None:
        """Remove the deployment with this key, if there is one."""
        if route := self._routes.pop(key, None):
            self._release(route)
            self._names = None

    def resolve(self, model: str) -> Route | None:
        """Return the route that a model name means."""
        return (self._names or self._table()).get(model)

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

    def _new_policy(self, deployment: Deployment) -> Policy:
        return POLICIES.get(deployment.policy or self._default_policy, POLICIES[self._default_policy])()

    def _endpoint(self, address: Address, vouched: bool) -> Endpoint:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._endpoints[address] = Endpoint(address)
            self._on_added(endpoint, vouched)
        return endpoint

    def _release(self, route: Route) -> None:
        self._uses.subtract(route.endpoints)
        for endpoint in route.endpoints:
            if not self._uses[endpoint]:
                del self._uses[endpoint]
                del self._endpoints[endpoint.address]
                self._on_removed(endpoint)
