"""The decision on the number of replicas, from bounds, targets and demand. No I/O."""

from enum import StrEnum
from typing import NamedTuple

from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.history import Summary

# The panic window counts if it calls for so many times the ready replicas.
PANIC_FACTOR = 2


class Reason(StrEnum):
    """The reason for the wanted replicas, in one word."""

    # The present replicas are right.
    STEADY = "Steady"
    # More are needed: by requests, by the use of KV caches, or by much within the panic window.
    REQUESTS = "Requests"
    KV_CACHE = "KVCache"
    PANIC = "Panic"
    # Fewer were enough for the whole scale-down delay.
    LESS_DEMAND = "LessDemand"
    IDLE = "Idle"
    # No replica was ready within the deadline.
    START_FAILED = "StartFailed"
    # `min` or `max` decides.
    BOUNDS = "Bounds"
    # Fewer may be enough, and nothing is removed: a router does not answer, or not all have answered for long enough.
    UNKNOWN_ROUTER = "UnknownRouter"
    WINDOW_NOT_PASSED = "WindowNotPassed"
    # A router wakes it by the first request.
    AT_ZERO = "AtZero"


class Decision(NamedTuple):
    """The wanted replicas, and the reason."""

    replicas: int
    reason: Reason


def decide(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary, *, has_failed_start: bool = False
) -> Decision:
    """Decide on the replicas. `replicas` are present, and `ready` of these are not starting any more.

    A start that failed is given up whatever the demand, which would otherwise hold the nodes for ever.
    """
    if replicas == 0 and autoscaling.min == 0:
        return Decision(0, Reason.AT_ZERO)
    if has_failed_start and not ready and replicas >= autoscaling.min:
        return Decision(autoscaling.min, Reason.START_FAILED)
    wanted = by_demand(autoscaling, replicas, ready, demand)
    bounded = min(max(wanted.replicas, autoscaling.min), autoscaling.max)
    return wanted if bounded == wanted.replicas else Decision(bounded, Reason.BOUNDS)


def by_demand(autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary) -> Decision:
    """Decide without the bounds, except that only a `min` of 0 allows none."""
    is_idle = autoscaling.min == 0 and demand.idle_seconds >= autoscaling.idle_seconds
    # The windows may be longer than the idle time, and contain demand from before.
    if not is_idle and (more := increase(autoscaling, ready, demand)).replicas > replicas:
        return more
    window = autoscaling.stable_window_seconds
    fewer = Decision(0, Reason.IDLE) if is_idle else Decision(max(1, demand.peak), Reason.LESS_DEMAND)
    if fewer.replicas >= replicas:
        return Decision(replicas, Reason.STEADY)
    if demand.known_seconds is None:
        return Decision(replicas, Reason.UNKNOWN_ROUTER)
    if not is_idle:
        window = max(window, autoscaling.scale_down_delay_seconds)
    return fewer if demand.known_seconds >= window else Decision(replicas, Reason.WINDOW_NOT_PASSED)


def increase(autoscaling: Autoscaling, ready: int, demand: Summary) -> Decision:
    """Return the replicas that the windows call for, which may be fewer than there are."""
    target = autoscaling.target_in_flight
    stable, panic = demand.stable.replicas(target), demand.panic.replicas(target)
    if panic > stable and panic >= PANIC_FACTOR * max(1, ready):
        return Decision(panic, Reason.PANIC)
    is_by_requests = demand.stable.by_requests(target) == stable
    return Decision(stable, Reason.REQUESTS if is_by_requests else Reason.KV_CACHE)
