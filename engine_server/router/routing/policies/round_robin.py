"""The policy `round_robin`."""

from collections.abc import Sequence

from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import E, Load


class RoundRobin:
    """Takes endpoints in turn: the next one is the one that was used longest ago."""

    def pick(self, key: RouteKey, candidates: Sequence[E], load: Load[E]) -> E:
        """Return the candidate that was used longest ago."""
        return min(candidates, key=load.last_used)
