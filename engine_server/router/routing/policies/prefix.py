"""The policy `prefix`."""

from collections.abc import Sequence
from typing import ClassVar

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.least_load import LeastLoad
from engine_server.router.routing.policies.policy import Choice
from engine_server.router.routing.policies.ring import Ring


class Prefix:
    """Sends prompts that begin alike to the endpoint that has their beginning in its cache, unless it is overloaded.

    Requests without a prompt go where the load is least.
    """

    has_ring: ClassVar[bool] = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._ring = Ring(endpoints)
        self._least_load = LeastLoad(endpoints)

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Choice:
        """Choose the candidate for the key's model, prefix and scope."""
        if not key.prefix:
            return self._least_load.pick(key, candidates, now)
        prompt = f"{key.model}\n{key.prefix}"
        return self._ring.pick(f"{key.scope}\n{prompt}" if key.scope else prompt, candidates, now)
