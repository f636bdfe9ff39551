"""The policy `session`."""

from collections.abc import Sequence
from typing import ClassVar

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice
from engine_server.router.routing.policies.prefix import Prefix
from engine_server.router.routing.policies.ring import Ring


class Session:
    """Sends the requests of a session to one endpoint, unless it is overloaded, and those without one by prefix."""

    has_ring: ClassVar[bool] = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._ring = Ring(endpoints)
        self._prefix = Prefix(endpoints)

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Choice:
        """Choose the candidate for the key's session."""
        if not key.session:
            return self._prefix.pick(key, candidates, now)
        return self._ring.pick(key.session, candidates, now)
