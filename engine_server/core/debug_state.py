"""A copy of the core's state, for tests and bug reports."""

from dataclasses import dataclass

from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.scheduler_state import SchedulerState


@dataclass(slots=True, frozen=True)
class RequestCounters:
    """One request's counters."""

    request_id: str
    num_prompt: int
    # Output tokens, those of launched steps included.
    num_output: int
    # Tokens whose K and V are in the cache, those of launched steps included.
    computed: int


@dataclass(slots=True, frozen=True)
class DebugState:
    """The requests and blocks of a core between two steps."""

    scheduler: SchedulerState
    # In order of arrival.
    requests: list[RequestCounters]
    # True if a step is in flight.
    in_flight: bool
    # Class of the attention backend.
    attention: str


def debug_state(scheduler: Scheduler, in_flight: bool, attention: str) -> DebugState:
    """Copy the state of a scheduler and its blocks."""
    requests = [_counters(request) for request in scheduler.requests.values()]
    return DebugState(scheduler.debug_state(), requests, in_flight, attention)


def _counters(request: Request) -> RequestCounters:
    return RequestCounters(
        request.request_id,
        request.num_prompt,
        request.num_output,
        request.computed,
    )
