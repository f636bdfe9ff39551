"""Which endpoint takes the next request: a policy answers that one question, and is told the load."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

E = TypeVar("E")
Load = Callable[[E], int]


class Policy(Protocol):
    def pick(self, endpoints: Sequence[E], load: Load[E]) -> E:
        """One of `endpoints`, of which there is at least one."""
        ...


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, endpoints: Sequence[E], load: Load[E]) -> E:
        self._turn = (self._turn + 1) % len(endpoints)
        return endpoints[self._turn]


class LeastLoad:
    """The one with the fewest requests under way; equals take turns, so that none idles while load is low."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, endpoints: Sequence[E], load: Load[E]) -> E:
        self._turn = first = (self._turn + 1) % len(endpoints)
        return min((*endpoints[first:], *endpoints[:first]), key=load)


POLICIES: dict[str, Callable[[], Policy]] = {"least_load": LeastLoad, "round_robin": RoundRobin}
DEFAULT_POLICY = "least_load"
