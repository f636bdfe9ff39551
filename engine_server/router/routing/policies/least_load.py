"""The policy `least_load`."""

from collections.abc import Sequence

from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import E, Load


class LeastLoad:
    """Takes the endpoint with the fewest requests in flight; equals take turns, so that none idles at low load."""

    def pick(self, key: RouteKey, candidates: Sequence[E], load: Load[E]) -> E:
        """Return the candidate with the fewest requests in flight; of equals, the one that was used longest ago."""
        return min(candidates, key=load.order)
