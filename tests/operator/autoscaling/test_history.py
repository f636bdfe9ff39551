"""Demand over time: windows, unknown routers, idle time, and replicas that follow a simulated demand."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling.decision import decide
from llm_operator.autoscaling.history import MOST_BUCKETS, History, Load, Sample, Summary, Window

SCALING = Autoscaling(
    min=0,
    max=50,
    target_in_flight=10,
    stable_window_seconds=20,
    panic_window_seconds=4,
    scale_down_delay_seconds=30,
    idle_seconds=40,
)
START_SECONDS = 10


def sample(
    time: float,
    requests: float,
    kv: float = 0.0,
    idle: float | None = None,
    known: bool = True,
    ready: bool = True,
) -> Sample:
    """Return a sample; without requests it is idle since the time 0 unless given."""
    idle = (0.0 if requests else time) if idle is None else idle
    return Sample(time, Load(requests, kv), idle, known, ready)


def record(history: History, samples: Iterable[Sample], autoscaling: Autoscaling = SCALING) -> Summary:
    """Record at least one sample, and return the last summary."""
    summary = None
    for one in samples:
        summary = history.record(one, autoscaling)
    assert summary is not None
    return summary


def simulate(
    demand: Callable[[int], float],
    seconds: int,
    replicas: int = 1,
    known: Callable[[int], bool] = lambda _: True,
) -> list[int]:
    """Return the replicas at each second; each is ready START_SECONDS after it was wanted."""
    history, result, busy_at = History(), [], 0
    for now in range(seconds):
        requests = demand(now)
        busy_at = now if requests else busy_at
        idle = float(now - busy_at)
        summary = history.record(sample(now, requests, idle=idle, known=known(now)), SCALING)
        ready = min(result[-START_SECONDS:], default=replicas)
        replicas = decide(SCALING, replicas, ready, summary).replicas
        result.append(replicas)
    return result


def turns(values: list[int]) -> int:
    """Return how often a series goes from growing to shrinking or back."""
    steps = [after - before for before, after in pairwise(values) if after != before]
    return sum((one > 0) != (two > 0) for one, two in pairwise(steps))


@given(st.integers(1, 500), st.integers(1, 50))
def test_constant_demand_reaches_its_replicas_and_never_flaps(requests: int, start: int) -> None:
    replicas = simulate(lambda _: requests, 120, start)
    assert replicas[-1] == -(-requests // 10)
    assert turns([start, *replicas]) == 0


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 60))
def test_demand_that_alternates_within_the_delay_is_served_at_its_greater_need(
    low: int, high: int, period: int
) -> None:
    low, high = min(low, high), max(low, high)
    replicas = simulate(lambda now: high if now // period % 2 else low, 600)
    # The delay is 30 s: a longer calm may remove replicas, and each change of demand turns at most once.
    assert turns(replicas) <= (1 if period <= 20 else 600 // period + 1)


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=100), st.integers(0, 50))
def test_replicas_stay_within_bounds_and_unknown_routers_remove_none(
    series: list[tuple[int, bool]], start: int
) -> None:
    replicas = simulate(lambda now: series[now][0], len(series), start, lambda now: series[now][1])
    assert all(0 <= count <= 50 for count in replicas)
    for now, (before, after) in enumerate(zip([start, *replicas], replicas, strict=False)):
        if after < before:
            assert all(is_known for _, is_known in series[max(0, now - 20) : now + 1])
            assert now >= 20


def test_a_burst_starts_replicas_within_the_panic_window() -> None:
    replicas = simulate(lambda now: 100.0 if now >= 60 else 5.0, 100)
    assert replicas[59] == 1 and replicas[64] == 10


def test_an_idle_deployment_goes_to_zero_after_its_idle_time_without_waiting_for_the_delay() -> None:
    replicas = simulate(lambda now: 5.0 if now < 10 else 0.0, 60)
    assert replicas[48] == 1 and replicas[49] == 0


def test_idle_time_starts_at_the_first_readiness() -> None:
    history = History()
    starting = record(history, (sample(time, 0, ready=False) for time in range(100)))
    assert starting.idle_seconds == 0.0
    assert record(history, [sample(100, 0)]).idle_seconds == 0.0
    assert record(history, [sample(105, 0)]).idle_seconds == 5.0
    # After zero the readiness of earlier replicas does not count.
    record(history, [sample(106, 0, ready=False)._replace(is_at_zero=True)])
    assert record(history, [sample(107, 0), sample(109, 0)]).idle_seconds == 2.0


def test_requests_between_samples_end_the_idle_time() -> None:
    history = History()
    record(history, (sample(time, 0) for time in range(50)))
    assert record(history, [sample(50, 0, idle=0.2)]).idle_seconds == pytest.approx(0.2)
    # A router that knew of them has gone.
    assert record(history, [sample(51, 0, idle=51.0)]).idle_seconds == pytest.approx(1.2)


def test_an_unknown_router_begins_the_window_again() -> None:
    history = History()
    assert record(history, (sample(time, 0) for time in range(30))).known_seconds == 29.0
    assert record(history, [sample(30, 0, known=False)]).known_seconds is None
    assert record(history, [sample(31, 0), sample(32, 0)]).known_seconds == 1.0


def test_a_gap_without_samples_begins_the_window_again() -> None:
    history = History()
    record(history, (sample(time, 0) for time in range(30)))
    assert record(history, [sample(60, 0)]).known_seconds == 0.0


def test_windows_average_requests_and_kv_use() -> None:
    history = History()
    summary = record(history, [sample(time, requests=time, kv=time / 10) for time in range(40)])
    assert summary.stable == Load(29.5, 2.95)
    assert summary.panic.requests == 37.5 and abs(summary.panic.kv - 3.75) < 1e-9
    assert summary.peak == 5


def test_kv_caches_at_the_target_need_no_further_replica() -> None:
    assert [Load(0, 0.8 * count).replicas(32) for count in range(1, 60)] == list(range(1, 60))
    assert Load(0, 0.81).replicas(32) == 2


def test_replicas_that_crash_again_and_again_become_idle() -> None:
    history = History()
    crashing = [sample(now, 0, ready=now % 15 == 5) for now in range(60)]

    summary = record(history, crashing)

    assert summary.idle_seconds == 54
    assert decide(SCALING, 1, 0, summary).replicas == 0


def test_idle_time_starts_anew_after_zero() -> None:
    history = History()
    record(history, [sample(now, 0) for now in range(30)])
    record(history, [sample(30, 0, ready=False)._replace(is_at_zero=True)])

    assert record(history, [sample(now, 0, ready=False) for now in range(31, 90)]).idle_seconds == 0.0
    assert record(history, [sample(now, 0) for now in range(90, 95)]).idle_seconds == 4.0


LOADS = st.lists(
    st.tuples(st.floats(0.2, 3.0), st.floats(0, 1e6), st.floats(0, 100)), min_size=1, max_size=400
)


@given(LOADS, st.integers(1, MOST_BUCKETS))
def test_window_of_up_to_two_minutes_averages_each_sample(
    loads: list[tuple[float, float, float]], seconds: int
) -> None:
    window, now, samples = Window(), 0.0, []
    for gap, requests, kv in loads:
        now += gap
        samples.append((now, requests, kv))
        found = window.add(now, Load(requests, kv), seconds)
        inside = [one for one in samples if one[0] > now - seconds]
        expected = (sum(one[part] for one in inside) / len(inside) for part in (1, 2))
        assert found == Load(*expected)


@given(st.integers(MOST_BUCKETS + 1, 86_400), st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_long_window_has_few_buckets_and_covers_all_but_one_of_them(seconds: int, steps: list[float]) -> None:
    window, samples = Window(), []
    interval = seconds / 300
    for number in range(700):
        requests = steps[number * len(steps) // 700]
        samples.append((number * interval, requests))
        found = window.add(number * interval, Load(requests, 0.0), seconds)
        assert len(window.buckets) <= MOST_BUCKETS + 1
    now = samples[-1][0]
    inside = [load for time, load in samples if time > now - seconds]
    fewest = [load for time, load in samples if time > now - seconds * (1 - 2 / MOST_BUCKETS)]
    assert min(inside) * (1 - 1e-9) <= found.requests <= max(inside) * (1 + 1e-9)
    dropped = (len(inside) - len(fewest)) / len(fewest) * max(inside)
    assert abs(found.requests - sum(inside) / len(inside)) <= dropped + 1e-3


def test_needs_of_a_demand_that_shrinks_all_day_are_bounded_by_the_most_replicas() -> None:
    history = History()
    scaling = Autoscaling(min=0, max=50, target_in_flight=1, scale_down_delay_seconds=86_400)
    summary = record(history, [sample(time, 20_000 - time, ready=True) for time in range(5_000)], scaling)
    assert len(history.peaks) <= scaling.max + 1
    assert summary.peak == scaling.max + 1
