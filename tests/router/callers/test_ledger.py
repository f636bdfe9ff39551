"""Limits that hold over several routers, which exchange their counts."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.contract.wire.errors import ErrorCode
from engine_server.router.callers.account import Account
from engine_server.router.callers.keys import KeyEntry
from engine_server.router.callers.ledger import Ledger, UsageReport
from engine_server.router.callers.limits import Debt
from engine_server.router.errors import RequestError

MINUTE = 60.0
NO_TOKENS = ReportedUsage(0, 0)


def entry(**limits) -> KeyEntry:
    return KeyEntry(name="k", sha256="0" * 64, **limits)


def start(now: float, *entries: KeyEntry) -> Ledger:
    ledger = Ledger(now)
    ledger.put(entries)
    return ledger


def exchange(ledgers: list[Ledger], now: float) -> None:
    """Have each router ask all, itself included, over the wire's format."""
    wire = [msgspec.json.encode(ledger.report(now)) for ledger in ledgers]
    for ledger in ledgers:
        ledger.balance([msgspec.json.decode(one, type=UsageReport) for one in wire], now)


def admits(ledger: Ledger, now: float) -> bool:
    try:
        ledger.accounts["k"].admit(now)
    except RequestError as error:
        assert (error.status, error.code) == (429, ErrorCode.RATE_LIMITED)
        return False
    return True


@dataclass
class Routers:
    """Routers on a simulated clock that exchange their counts once a second, and all that they admitted."""

    ledgers: list[Ledger]
    now: float = 1000.0
    # Time and router of each admitted request.
    admitted: list[tuple[float, int]] = field(default_factory=list)
    last_exchange: float = 1000.0
    # Times of requests that a router which started again may not have heard of.
    unheard: list[float] = field(default_factory=list)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.last_exchange + 1.0 <= end:
            self.last_exchange += 1.0
            exchange(self.ledgers, self.last_exchange)
        self.now = end

    def arrive(self, router: int) -> bool:
        if admitted := admits(self.ledgers[router], self.now):
            self.admitted.append((self.now, router))
        return admitted

    def last_minute(self, seconds: float = MINUTE) -> int:
        return sum(time > self.now - seconds for time, _ in self.admitted)

    def unknown_to(self, router: int) -> int:
        """The requests that other routers admitted since the last exchange."""
        return sum(time >= self.last_exchange and by != router for time, by in self.admitted)

    def restart(self, router: int, *entries: KeyEntry) -> None:
        """Replace a router by one that asks the others at once. What nobody had asked the old one for is lost.

        The others do not know of each other's requests since the last exchange, so the new one can't tell them apart.
        """
        self.unheard += [time for time, by in self.admitted if by != router and time >= self.last_exchange]
        self.admitted = [(t, by) for t, by in self.admitted if by != router or t < self.last_exchange]
        self.ledgers[router] = start(self.now, *entries)
        self.ledgers[router].balance([ledger.report(self.now) for ledger in self.ledgers], self.now)


events = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 2)), max_size=120)


@given(events, st.integers(1, 12))
def test_three_routers_exceed_a_limit_by_no_more_than_the_arrivals_since_the_last_exchange(events, limit):
    routers = Routers([start(1000.0, entry(requests_per_minute=limit)) for _ in range(3)])
    for pause, router in events:
        routers.advance(pause)
        if routers.arrive(router):
            assert routers.last_minute() <= limit + routers.unknown_to(router)
        else:  # nobody is refused while there is room: a window has whole seconds, and counts arrive a second late
            assert routers.last_minute(MINUTE + 2.0) >= limit


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(0, 2), st.sampled_from([False] * 4 + [True])), max_size=120
    ),
    st.integers(1, 12),
)
def test_a_limit_holds_while_routers_are_replaced(events, limit):
    limits = entry(requests_per_minute=limit)
    routers = Routers([start(1000.0, limits) for _ in range(3)])
    for pause, router, restarts in events:
        routers.advance(pause)
        if restarts:
            routers.restart(router, limits)
        elif routers.arrive(router):
            unheard = sum(time > routers.now - MINUTE for time in routers.unheard)
            assert routers.last_minute() <= limit + routers.unknown_to(router) + unheard


@given(events, st.integers(1, 6))
def test_three_routers_limit_the_requests_in_flight(events, limit):
    routers = Routers([start(1000.0, entry(concurrency=limit)) for _ in range(3)])
    in_flight: list[int] = []
    for step, (pause, router) in enumerate(events):
        routers.advance(pause)
        if in_flight and step % 3 == 2:
            routers.ledgers[in_flight.pop(0)].accounts["k"].settle(routers.now, NO_TOKENS)
        elif routers.arrive(router):
            in_flight.append(router)
            assert len(in_flight) <= limit + routers.unknown_to(router)
    for router in in_flight:
        routers.ledgers[router].accounts["k"].settle(routers.now, NO_TOKENS)
    routers.advance(2.0)
    for ledger in routers.ledgers:
        account = ledger.accounts["k"]
        assert account.in_flight == account.in_flight_elsewhere == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2), st.integers(0, 3000)), max_size=60))
def test_tokens_used_at_one_router_are_owed_at_all(events):
    per_minute = 600
    routers = Routers([start(1000.0, entry(tokens_per_minute=per_minute)) for _ in range(3)])
    exchange(routers.ledgers, routers.now)
    expected = Debt(per_minute)
    for pause, router, tokens in events:
        routers.advance(pause)
        if routers.arrive(router):
            routers.ledgers[router].accounts["k"].settle(routers.now, ReportedUsage(tokens, 0))
            expected.add(routers.now, tokens)
    routers.advance(1.0)
    for ledger in routers.ledgers:
        # Repayment begins when a router learns of the tokens, up to a second after they were used.
        surplus = ledger.accounts["k"].counts(routers.now).tokens_owed - expected.owed(routers.now)
        assert -1e-3 <= surplus <= per_minute / MINUTE + 1e-3


def test_a_router_that_starts_later_takes_over_the_counts():
    old = [start(1000.0, entry(requests_per_minute=10, tokens_per_minute=100)) for _ in range(2)]
    for ledger in old:
        for _ in range(4):
            assert admits(ledger, 1100.0)
            ledger.accounts["k"].settle(1100.0, ReportedUsage(3, 4))
    exchange(old, 1101.0)
    new = start(1102.0, entry(requests_per_minute=10, tokens_per_minute=100))
    exchange([*old, new], 1102.0)
    counts = new.accounts["k"].counts(1102.0)
    assert counts.requests == 0 and counts.requests_last_minute == 8
    assert 50 < counts.tokens_owed < 56
    exchange([*old, new], 1103.0)
    for ledger in (*old, new):
        assert ledger.accounts["k"].counts(1103.0).requests_last_minute == 8


def test_a_router_that_starts_again_takes_over_its_own_counts():
    first, other = (start(1000.0, entry(requests_per_minute=1)) for _ in range(2))
    assert admits(first, 1000.0)
    exchange([first, other], 1001.0)
    again = start(1002.0, entry(requests_per_minute=1))
    again.balance([other.report(1002.0)], 1002.0)
    assert not admits(again, 1002.0)


def test_what_a_new_router_admitted_before_the_first_exchange_is_added_to_the_counts():
    old = [start(1000.0, entry(requests_per_minute=10)) for _ in range(2)]
    for ledger in old:
        assert admits(ledger, 1100.0)
    exchange(old, 1101.0)
    new = start(1101.0, entry(requests_per_minute=10))
    assert admits(new, 1101.5)
    exchange([*old, new], 1102.0)
    for ledger in (*old, new):
        assert ledger.accounts["k"].counts(1102.0).requests_last_minute == 3


def test_the_first_requests_of_a_new_router_count_at_the_others():
    old = start(1000.0, entry(requests_per_minute=10))
    assert admits(old, 1100.0)
    new = start(1100.0, entry(requests_per_minute=10))
    for _ in range(3):
        assert admits(new, 1100.5)
    exchange([old, new], 1101.0)
    assert old.accounts["k"].counts(1101.0).requests_last_minute == 4


def test_requests_in_flight_at_a_silent_router_are_forgotten():
    one, two = (start(1000.0, entry(concurrency=1)) for _ in range(2))
    assert admits(one, 1000.0)
    exchange([one, two], 1001.0)
    assert not admits(two, 1001.0)
    for now in (1002.0, 1004.0):
        two.balance([], now)
        assert not admits(two, now)
    two.balance([], 1007.0)
    assert admits(two, 1007.0)


def test_a_router_that_was_silent_is_not_counted_twice():
    one, two = (start(1000.0, entry(requests_per_minute=10)) for _ in range(2))
    for now in (1001.0, 1020.0, 1025.0):
        assert admits(one, now)
        two.balance([one.report(now)], now)
    assert two.accounts["k"].counts(1025.0).requests_last_minute == 3


def test_counts_of_keys_that_only_another_router_knows_are_ignored():
    one = start(1000.0, entry())
    two = start(1000.0)
    assert admits(one, 1000.0)
    exchange([one, two], 1001.0)
    assert two.accounts == {}


def test_a_changed_limit_keeps_what_was_counted():
    ledger = start(1000.0, entry(requests_per_minute=2))
    assert admits(ledger, 1000.0) and admits(ledger, 1000.0) and not admits(ledger, 1000.0)
    ledger.put([entry(requests_per_minute=3)])
    assert admits(ledger, 1001.0) and not admits(ledger, 1001.0)
    assert ledger.accounts["k"].in_flight == 3


@pytest.mark.parametrize(
    ("limits", "retry_after"),
    [({"requests_per_minute": 1}, b"61"), ({"tokens_per_minute": 60}, b"42"), ({"concurrency": 1}, b"1")],
)
def test_a_refusal_names_the_limit_and_when_to_try_again(limits, retry_after):
    account = Account(entry(**limits))
    account.admit(1000.0)
    if "tokens_per_minute" in limits:
        account.settle(1000.0, ReportedUsage(60, 41))
    with pytest.raises(RequestError, match="'k' may") as refusal:
        account.admit(1000.0)
    assert refusal.value.lines[0] == b"Retry-After: %b\r\n" % retry_after


def test_estimates_of_requests_in_flight_count_at_other_routers_until_they_end():
    first, second = (start(1000.0, entry(tokens_per_minute=600)) for _ in range(2))
    first.accounts["k"].admit(1000.0, 1000)
    exchange([first, second], 1001.0)
    assert not admits(second, 1001.0)

    first.accounts["k"].settle(1001.0, ReportedUsage(1, 1), 1000)
    exchange([first, second], 1002.0)

    assert admits(second, 1002.0)
    assert first.report(1002.0).keys["k"].tokens_owed < 10


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 90)), max_size=20))
def test_nothing_is_owed_below_zero_whatever_was_estimated(requests):
    account, now = Account(entry(tokens_per_minute=6000)), 1000.0
    for estimated, used, seconds in requests:
        account.admit(now, estimated)
        now += seconds
        account.settle(now, ReportedUsage(used, 0), estimated)
        assert account.counts(now).tokens_owed >= 0 and account.tokens_estimated == 0
        now += 180.0
