"""The budget of retries."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.routing.retry_budget import MINIMUM, SHARE, WINDOW_SECONDS, RetryBudget

GAPS = st.one_of(st.floats(0.0, 0.05), st.floats(0.0, 2.0), st.floats(0.0, 30.0))


@given(st.floats(0.0, 1e6), st.lists(st.tuples(GAPS, st.integers(0, 40), st.integers(0, 20)), max_size=40))
def test_no_retry_exceeds_the_share_of_its_window(start, steps):
    budget, now = RetryBudget(), start
    requests: list[float] = []
    retries: list[float] = []
    for gap, arriving, retrying in steps:
        now += gap
        for _ in range(arriving):
            budget.count(now)
            requests.append(now)
        for _ in range(retrying):
            if budget.spend(now):
                retries.append(now)
                in_window = sum(time > now - WINDOW_SECONDS for time in retries)
                arrived = sum(time > now - WINDOW_SECONDS for time in requests)
                assert in_window <= max(MINIMUM, SHARE * arrived)


@given(st.floats(0.0, 1e6), st.lists(GAPS, max_size=40))
def test_the_minimum_is_available_in_every_window(start, gaps):
    budget, now = RetryBudget(), start
    for gap in gaps:
        now += gap
        budget.count(now)
    now += WINDOW_SECONDS
    assert [budget.spend(now) for _ in range(MINIMUM)] == [True] * MINIMUM


def test_the_share_of_the_last_seconds_requests_is_available():
    budget = RetryBudget()
    for tenth in range(90):
        for _ in range(10):
            budget.count(100.0 + tenth / 10)
    granted = sum(budget.spend(109.0) for _ in range(1000))
    assert granted == SHARE * 900
