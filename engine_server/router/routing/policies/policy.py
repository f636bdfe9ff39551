"""The interface of policies."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine_server.router.routing.key import RouteKey

E = TypeVar("E")


class Load(NamedTuple, Generic[E]):
    """The load of endpoints, as far as policies see it."""

    # Requests in flight at an endpoint, then the time at which it was last used: sorts the least loaded first.
    order: Callable[[E], tuple[int, float]]
    # Time at which an endpoint was last sent a request, on any clock that only grows.
    last_used: Callable[[E], float]


class Policy(Protocol):
    """Chooses the endpoint of a request.

    The choice depends on the arguments alone and changes nothing. It counts only once the request is sent, which the
    load then shows; so a caller may ask again, or drop the choice.
    """

    def pick(self, key: RouteKey, candidates: Sequence[E], load: Load[E]) -> E:
        """Return one of `candidates`, of which there is at least one."""
        ...
