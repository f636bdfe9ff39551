"""The policy `least_load`."""

from collections.abc import Sequence
from random import sample
from typing import ClassVar

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice

# Comparing two endpoints at random comes close to comparing all, and several routers do not rush to the same one.
MOST_COMPARED = 16


class LeastLoad:
    """Takes the endpoint with the least load; equals take turns, so that none idles at low load."""

    has_ring: ClassVar[bool] = False

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Need nothing of the endpoints: each knows its load."""

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Choice:
        """Choose the candidate with the least load for its share; of equals, the one that was used longest ago.

        Of more than MOST_COMPARED candidates, two at random are compared.
        """
        if len(candidates) > MOST_COMPARED:
            candidates = sample(candidates, 2)
        least = min(
            candidates,
            key=lambda endpoint: ((endpoint.load(now) + 1.0) / endpoint.share(now), endpoint.last_used),
        )
        return Choice(least)
