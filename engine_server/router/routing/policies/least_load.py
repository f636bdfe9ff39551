"""The policy `least_load`."""

from collections.abc import Sequence

from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import E, Load


class LeastLoad:
    """Takes the endpoint with the fewest requests in flight; equals take turns, so that none idles at low load."""

    def pick(self, key: RouteKey, candidates: Sequence[E], load: Load[E]) -> E:
        """Return, of the candidates with the fewest requests in flight, the one that was chosen longest ago."""
        fewest = min(map(load.in_flight, candidates))
        least_loaded = [candidate for candidate in candidates if load.in_flight(candidate) == fewest]
        return min(least_loaded, key=load.last_used)
