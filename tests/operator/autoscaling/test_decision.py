"""The decision on replicas: properties over all demand, and one case for each reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.decision import Decision, Reason, decide
from llm_operator.autoscaling.history import Load, Summary

LONG_KNOWN = 100_000.0
NOTHING = Load(0.0, 0.0)

loads = st.builds(Load, st.floats(0, 10_000), st.floats(0, 200))
counts = st.integers(0, 300)
KNOWN = st.floats(0, LONG_KNOWN) | st.none()


@st.composite
def autoscalings(draw: st.DrawFn) -> Autoscaling:
    least = draw(st.integers(0, 20))
    return Autoscaling(
        min=least,
        max=draw(st.integers(max(1, least), 200)),
        target_in_flight=draw(st.integers(1, 300)),
        idle_seconds=draw(st.integers(1, 1000)),
    )


@st.composite
def summaries(draw: st.DrawFn, known: Any = KNOWN) -> Summary:
    return Summary(draw(loads), draw(loads), draw(counts), draw(known), draw(st.floats(0, 2000)))


@given(autoscalings(), counts, counts, summaries())
def test_the_bounds_always_hold(autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary) -> None:
    assert autoscaling.min <= decide(autoscaling, replicas, ready, demand).replicas <= autoscaling.max


@given(autoscalings(), counts, counts, summaries(known=st.none()))
def test_an_unknown_router_never_scales_down(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary
) -> None:
    assert decide(autoscaling, replicas, ready, demand).replicas >= min(replicas, autoscaling.max)


@given(autoscalings(), counts, counts, summaries(known=st.floats(0, 59.9)))
def test_nothing_is_scaled_down_before_a_stable_window_has_passed(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary
) -> None:
    assert decide(autoscaling, replicas, ready, demand).replicas >= min(replicas, autoscaling.max)


@given(autoscalings(), counts, counts, summaries(), loads, counts)
def test_more_demand_never_wants_fewer_replicas(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary, extra: Load, peak: int
) -> None:
    more = demand._replace(
        stable=Load(demand.stable.requests + extra.requests, demand.stable.kv + extra.kv),
        panic=Load(demand.panic.requests + extra.requests, demand.panic.kv + extra.kv),
        peak=demand.peak + peak,
        idle_seconds=0.0,
    )
    assert (
        decide(autoscaling, replicas, ready, more).replicas
        >= decide(autoscaling, replicas, ready, demand).replicas
    )


@given(autoscalings(), st.integers(0, 200), counts, summaries())
def test_the_wanted_replicas_are_wanted_again_while_demand_stays(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary
) -> None:
    """Demand is never so low that what it has just started is removed, nor the reverse."""
    target = autoscaling.target_in_flight
    demand = demand._replace(
        peak=max(demand.peak, demand.stable.replicas(target), demand.panic.replicas(target))
    )
    first = decide(autoscaling, replicas, ready, demand).replicas
    second = decide(autoscaling, first, ready, demand).replicas
    assert second == first


def known(
    stable: Load,
    panic: Load | None = None,
    peak: int = 0,
    known_seconds: float | None = LONG_KNOWN,
    idle: float = 0.0,
) -> Summary:
    return Summary(stable, panic or stable, peak, known_seconds, idle)


SCALING = Autoscaling(min=0, max=10, target_in_flight=32)


@pytest.mark.parametrize(
    ("replicas", "demand", "expected"),
    [
        (2, known(Load(64, 0), peak=2), Decision(2, Reason.STEADY)),
        (2, known(Load(65, 0), peak=3), Decision(3, Reason.REQUESTS)),
        (2, known(Load(10, 1.7), peak=3), Decision(3, Reason.KV_CACHE)),
        (1, known(Load(5, 0), Load(100, 0), peak=4), Decision(4, Reason.PANIC)),
        (3, known(Load(5, 0), Load(160, 0), peak=5), Decision(3, Reason.STEADY)),
        (5, known(Load(33, 0), peak=2), Decision(2, Reason.LESS_DEMAND)),
        (5, known(NOTHING, peak=0), Decision(1, Reason.LESS_DEMAND)),
        (5, known(NOTHING, peak=0, idle=300.0), Decision(0, Reason.IDLE)),
        (1, known(Load(65, 0), peak=3, idle=300.0), Decision(0, Reason.IDLE)),
        (5, known(NOTHING, peak=5, idle=300.0), Decision(0, Reason.IDLE)),
        (1, known(NOTHING, peak=0, idle=299.0), Decision(1, Reason.STEADY)),
        (5, known(NOTHING, peak=0, known_seconds=299.0), Decision(5, Reason.WINDOW_NOT_PASSED)),
        (5, known(NOTHING, peak=0, known_seconds=61.0, idle=300.0), Decision(0, Reason.IDLE)),
        (5, known(NOTHING, peak=0, known_seconds=None), Decision(5, Reason.UNKNOWN_ROUTER)),
        (5, known(Load(800, 0), peak=25, known_seconds=None), Decision(10, Reason.BOUNDS)),
        (12, known(Load(800, 0), peak=25, known_seconds=None), Decision(10, Reason.BOUNDS)),
        (0, known(Load(100, 0), peak=4), Decision(0, Reason.AT_ZERO)),
    ],
)
def test_decides_with_a_reason(replicas: int, demand: Summary, expected: Decision) -> None:
    assert decide(SCALING, replicas, replicas, demand) == expected


def test_a_burst_while_replicas_start_is_compared_with_those_that_are_ready() -> None:
    burst = known(Load(5, 0), Load(160, 0), peak=5)
    assert decide(SCALING, 3, 2, burst) == Decision(5, Reason.PANIC)
    assert decide(SCALING, 5, 0, burst) == Decision(5, Reason.STEADY)


def test_a_minimum_starts_replicas_of_a_deployment_at_zero() -> None:
    autoscaling = Autoscaling(min=2, max=3)
    assert decide(autoscaling, 0, 0, known(NOTHING)) == Decision(2, Reason.BOUNDS)
    assert decide(autoscaling, 2, 2, known(NOTHING, idle=1e6)).replicas == 2


@given(autoscalings(), counts, summaries())
def test_a_start_that_failed_is_scaled_to_the_minimum_whatever_the_demand(
    autoscaling: Autoscaling, more: int, demand: Summary
) -> None:
    replicas = max(1, autoscaling.min) + more

    decision = decide(autoscaling, replicas, 0, demand, has_failed_start=True)

    assert decision == Decision(autoscaling.min, Reason.START_FAILED)


@given(autoscalings(), counts, counts, summaries())
def test_a_failed_start_removes_no_ready_replica(
    autoscaling: Autoscaling, replicas: int, ready: int, demand: Summary
) -> None:
    usual = decide(autoscaling, replicas, ready + 1, demand)

    assert decide(autoscaling, replicas, ready + 1, demand, has_failed_start=True) == usual
