"""The interface of policies."""

from collections.abc import Sequence
from typing import Protocol

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.ring import Ring


class Policy(Protocol):
    """Chooses the endpoint of a request. There is one for each deployment, made again when its endpoints change.

    The choice changes nothing. It counts only once the request is sent, which the endpoint's load then shows; so a
    caller may ask again, or drop the choice.
    """

    # Their hits and spills are exposed as metrics. All other results of a choice are its return value.
    rings: Sequence[Ring]

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Choose among these endpoints, or those of them that can take a request."""
        ...

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Endpoint:
        """Return one of `candidates`, of which there is at least one. now: the time (perf_counter)."""
        ...
