"""The order in which the waiting requests of one deployment are released."""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine_server.shared.shares import Shares


class Place(NamedTuple):
    """The place of a request in its line. A lower one is released earlier."""

    # The negated priority.
    rank: int
    # Each caller has one request in each round.
    round: int
    arrival: int
    caller: str


class Placed(Protocol):
    """Anything that can wait in a line."""

    place: Place
    # The client has a part of the answer.
    begun: bool


P = TypeVar("P", bound=Placed)
PLACE = attrgetter("place")


class Line(Generic[P]):
    """Waiting requests: higher priorities first, then round robin between callers, then first come, first served.

    A place is fixed when it is given, so a request that was released in vain can return to it. No caller is starved
    by others of its priority: each of them has at most one request in each of the rounds before.
    """

    def __init__(self, limit: int) -> None:
        """limit: the number of places; requests that return to theirs have one in any case."""
        self._waiting: list[P] = []
        self._arrivals = 0
        # The places of each caller.
        self._shares = Shares(limit)
        # By rank and caller: the number of requests that wait.
        self._counts: Counter[tuple[int, str]] = Counter()
        # By rank: the highest round of which a request was released, and the callers of those that were.
        self._rounds: dict[int, int] = {}
        self._served: defaultdict[int, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[P]:
        return iter(self._waiting)

    def new_place(self, caller: str, priority: int) -> Place:
        """Return the place of a request that arrives now."""
        rank = -priority
        highest = self._rounds.get(rank, 0)
        last = highest if caller in self._served[rank] else -1
        if self._counts[rank, caller]:
            places = (request.place for request in reversed(self._waiting))
            last = next(place.round for place in places if (place.rank, place.caller) == (rank, caller))
        self._arrivals += 1
        return Place(rank, max(highest, last + 1), self._arrivals, caller)

    @property
    def full(self) -> bool:
        """True if another request only finds a place if one is given up."""
        return self._shares.used >= self._shares.limit

    def surplus(self, newcomer: str, priority: int) -> P | None:
        """Return the request that is to give up its place for one of a caller with fewer; None if there is none.

        It is the newest one of the lowest priority, which is no higher than the newcomer's, of a caller that holds more
        places than the newcomer would then. It has not begun.
        """
        shares, least = self._shares, self._shares.held(newcomer) + 1
        for request in reversed(self._waiting):
            rank, _, _, caller = request.place
            if rank < -priority:
                return None
            if shares.held(caller) > least and not request.begun:
                newest = (one for one in self._waiting if not one.begun and one.place[::3] == (rank, caller))
                return max(newest, key=lambda one: one.place.arrival)
        return None

    def add(self, request: P) -> None:
        """Add a request at its place."""
        insort(self._waiting, request, key=PLACE)
        self._counts[request.place.rank, request.place.caller] += 1
        self._shares.take(request.place.caller, 1)

    def remove(self, request: P) -> bool:
        """Remove a request that no longer waits, and return True if it was in the line."""
        index = bisect_left(self._waiting, request.place, key=PLACE)
        if index == len(self._waiting) or self._waiting[index] is not request:
            return False
        del self._waiting[index]
        rank, _, _, caller = request.place
        self._counts[rank, caller] -= 1
        if not self._counts[rank, caller]:
            del self._counts[rank, caller]
        self._shares.release(caller, 1)
        if not self._waiting:
            self._served.clear()
        return True

    def release(self) -> P:
        """Remove and return the request whose turn it is; there must be one."""
        first = self._waiting[0]
        self.remove(first)
        rank, turn, _, caller = first.place
        highest, served = self._rounds.get(rank, 0), self._served[rank]
        # Callers may be addresses, of which there is no end: a round ends after so many.
        if turn > highest or len(served) >= self._shares.limit:
            self._rounds[rank] = max(turn, highest + 1)
            served.clear()
        if turn >= self._rounds.setdefault(rank, turn):
            served.add(caller)
        return first
