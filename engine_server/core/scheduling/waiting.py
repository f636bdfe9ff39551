"""The requests that wait to run, in the order of a scheduling policy."""

import itertools
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from engine_server.config.scheduler import SchedulingPolicy
from engine_server.core.adapters.adapter_pools import AdapterPools, AnyPool
from engine_server.core.scheduling.request import Request

by_queue_position = attrgetter("queue_position")


class WaitingRequests(ABC):
    """A queue whose order also decides which running request is preempted.

    A request gets its position when it arrives. It keeps it when it is preempted, so that the first request in order
    always makes progress.
    """

    def __init__(self) -> None:
        # Sorted by queue position.
        self._requests: list[Request] = []
        self._arrivals = itertools.count()

    @abstractmethod
    def rank(self, request: Request) -> int:
        """Return the number by which a new request is ordered: lower ones run first, equal ones by arrival."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Queue a new request after all others of its rank."""
        request.queue_position = (self.rank(request), next(self._arrivals))
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request at its position."""
        insort(self._requests, request, key=by_queue_position)

    def remove(self, request: Request) -> None:
        """Remove a request that starts to run, or ends."""
        self._requests.remove(request)

    def first(self, adapters: AdapterPools, awaits: Callable[[Request], bool]) -> Request | None:
        """Return the first request that nothing but memory can hold back.

        awaits: returns True for a request that had better wait for a running one; others pass it.

        One whose adapter finds no slot, or no room in memory, holds back later ones with adapters of its kind, so that
        it gets the next; other requests pass it. So do those that have started, whose adapters stay in memory until
        they end.
        """
        reserved: set[AnyPool] = set()
        for request in self._requests:
            kept = reserved if request.scheduled is None else ()
            if not (request.ready and adapters.can_run(request.adapters, kept)):
                reserved |= adapters.lacking(request.adapters)
            elif not awaits(request):
                return request
        return None

    def first_to_preempt(self, running: Sequence[Request]) -> Request:
        """Return the running request that gives up its blocks when they run out: the last in order."""
        return max(running, key=by_queue_position)

    def check_integrity(self) -> None:
        """Assert that the requests are in order and hold nothing of the cache."""
        assert self._requests == sorted(self._requests, key=by_queue_position), "the queue is out of order"
        assert all(request.row is None and not request.computed for request in self._requests), (
            "a waiting request has a row or computed tokens"
        )


class FirstComeFirstServed(WaitingRequests):
    """Requests in the order of their arrival."""

    def rank(self, request: Request) -> int:
        return 0


class PriorityFirst(WaitingRequests):
    """Requests in the order of their priorities."""

    def rank(self, request: Request) -> int:
        return request.priority


def waiting_requests(policy: SchedulingPolicy) -> WaitingRequests:
    """Return an empty queue in the order of a policy."""
    match policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "priority":
            return PriorityFirst()
