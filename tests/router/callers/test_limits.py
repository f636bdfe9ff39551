"""Counts of the last minute, and tokens that are owed."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.callers.limits import Debt, Window

LIMIT = 5
MINUTE = 60.0


@given(st.lists(st.floats(0, 40), max_size=80))
def test_no_minute_has_more_events_than_the_limit(pauses):
    window, now, admitted = Window(), 1000.0, []
    for pause in pauses:
        now += pause
        if window.total(now) < LIMIT:
            window.add(now, 1)
            admitted.append(now)
    for start in admitted:
        assert sum(start <= time < start + MINUTE for time in admitted) <= LIMIT


@given(st.lists(st.floats(0, 40), min_size=LIMIT, max_size=80), st.integers(1, LIMIT))
def test_a_window_has_room_after_exactly_the_time_that_it_announces(pauses, limit):
    window, now = Window(), 1000.0
    for pause in pauses:
        now += pause
        window.add(now, 1)
    wait = window.seconds_until_below(limit, now)
    assert wait <= MINUTE + 1
    if wait:
        assert window.total(now + wait - 1.0) >= limit
    assert window.total(now + wait + 1e-6) < limit


def test_a_window_forgets_everything_after_a_long_pause():
    window = Window()
    window.add(10.0, 3)
    window.add(1_000_000.0, 1)
    assert window.total(1_000_000.0) == 1


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5000)), min_size=1, max_size=50))
def test_tokens_beyond_a_minutes_amount_are_repaid_before_more_are_allowed(spending):
    per_minute = 600
    debt, begin = Debt(per_minute), 1000.0
    now, used = begin, 0
    for pause, tokens in spending:
        now += pause
        wait = debt.seconds_until_repaid(now)
        if wait > 0.2:
            assert debt.seconds_until_repaid(now + wait - 0.2)
        now += wait + 1e-6
        assert debt.seconds_until_repaid(now) == 0
        # On average over all time no more than the limit, beside the amount that may be owed.
        assert used <= per_minute * (1 + (now - begin) / MINUTE)
        debt.add(now, tokens)
        used += tokens


def test_nothing_is_owed_without_a_limit():
    debt = Debt(None)
    debt.add(0.0, 10**9)
    assert debt.owed(0.0) == 0 and debt.seconds_until_repaid(0.0) == 0


def test_a_debt_survives_a_change_of_its_limit():
    debt = Debt(60)
    debt.add(0.0, 120)
    debt.per_minute = 6000
    assert debt.seconds_until_repaid(0.0) == 0
    debt.per_minute = 60
    assert 60 <= debt.seconds_until_repaid(0.0) <= 61
