"""The choice of an endpoint for a request: directory, health and policy together."""

from collections.abc import Collection
from operator import attrgetter

from engine_server.router.routing.directory import Directory
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Load

LOAD: Load[Endpoint] = Load(order=attrgetter("order"), last_used=attrgetter("last_used"))


class Selector:
    """Chooses among the live endpoints of the deployment that a request names."""

    def __init__(self, directory: Directory, health: Health) -> None:
        self._directory = directory
        self._health = health

    def pick(self, key: RouteKey, tried: Collection[Endpoint]) -> Endpoint | None:
        """Return a live endpoint for the request that is not among `tried`, or None if there is none."""
        route = self._directory.resolve(key.model)
        if route is None:
            return None
        candidates, down = route.endpoints, self._health.down
        if down or tried:
            candidates = tuple(e for e in candidates if e not in down and e not in tried)
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return route.policy.pick(key, candidates, LOAD)
