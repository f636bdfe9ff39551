"""The policy `round_robin`."""

from collections.abc import Sequence
from typing import ClassVar

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice


class RoundRobin:
    """Takes endpoints in turn: the next one is the one that was used longest ago.

    A new endpoint's time passes more slowly, by its share, so that its turns are as much rarer.
    """

    has_ring: ClassVar[bool] = False

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Need nothing of the endpoints: each knows when it was used."""

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Choice:
        """Choose the candidate that was used longest ago."""
        return Choice(max(candidates, key=lambda endpoint: (now - endpoint.last_used) * endpoint.share(now)))
