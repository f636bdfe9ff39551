"""The interface of policies."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec

from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import RouteKey


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The endpoint that a policy chose for a request."""

    endpoint: Endpoint
    # It is the key's own in consistent hashing, or another one because that is beyond its bound or no candidate. None
    # for a choice without a ring.
    is_own: bool | None = None


class Policy(Protocol):
    """Chooses the endpoint of a request. There is one for each deployment, made again when its endpoints change.

    The choice changes nothing. It counts only once the request is sent, which the endpoint's load then shows; so a
    caller may ask again, or drop the choice.
    """

    # Some choices are made by a ring.
    has_ring: ClassVar[bool]

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Choose among these endpoints, or those of them that can take a request."""
        ...

    def pick(self, key: RouteKey, candidates: Sequence[Endpoint], now: float) -> Choice:
        """Choose one of `candidates`, of which there is at least one. now: the time (perf_counter)."""
        ...
