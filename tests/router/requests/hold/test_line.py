"""The order of a line: priorities, round robin between callers, first come first served within a caller."""

from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_server.router.requests.hold.line import Line, Place

LIMIT = 100


@dataclass(eq=False)
class Waiting:
    place: Place
    caller: str
    priority: int
    begun: bool = False
    # Requests of the same caller and priority that were ahead on arrival.
    own_ahead: int = 0
    # Requests with the same priority that were released while this one waited, by caller.
    passed_by: Counter = field(default_factory=Counter)


def arrive(line: Line, caller: str, priority: int = 0, *, begun: bool = False) -> Waiting:
    ahead = sum((one.caller, one.priority) == (caller, priority) for one in line)
    waiting = Waiting(line.new_place(caller, priority), caller, priority, begun, ahead)
    line.add(waiting)
    return waiting


def test_callers_take_turns_however_many_requests_each_has():
    line = Line(LIMIT)
    for caller in "aaaabbc":
        arrive(line, caller)
    assert "".join(line.release().caller for _ in range(7)) == "abcabaa"


def test_a_higher_priority_is_released_first():
    line = Line(LIMIT)
    arrive(line, "a")
    arrive(line, "b", priority=5)
    arrive(line, "c", priority=-1)
    assert [line.release().caller for _ in range(3)] == ["b", "a", "c"]


def test_a_request_that_was_released_in_vain_returns_to_its_place():
    line = Line(LIMIT)
    for caller in "abab":
        arrive(line, caller)
    first, second = line.release(), line.release()
    arrive(line, "c")
    line.add(second)
    line.add(first)
    assert [line.release() for _ in range(2)] == [first, second]


def test_removing_a_request_that_is_not_in_the_line_changes_nothing():
    line = Line(LIMIT)
    gone, waits = arrive(line, "a"), arrive(line, "a")
    assert line.remove(gone)
    assert not line.remove(gone)
    assert [*line] == [waits]


class LineMachine(RuleBasedStateMachine):
    """Arrivals, releases, departures and returns in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Line[Waiting] = Line(LIMIT)
        self.waiting: list[Waiting] = []
        self.released: list[Waiting] = []
        # Departures by caller and priority, and requests that were released in vain.
        self.left: Counter = Counter()
        self.returned = 0

    @rule(caller=st.sampled_from("abcd"), priority=st.sampled_from([0, 0, 1]))
    def arrive(self, caller, priority):
        self.waiting.append(arrive(self.line, caller, priority))

    @precondition(lambda self: self.waiting)
    @rule()
    def release(self):
        one = self.line.release()
        self.waiting.remove(one)
        self.released.append(one)
        assert one.priority == max([one.priority, *(other.priority for other in self.waiting)])
        for other in self.waiting:
            if other.priority == one.priority:
                assert other.caller != one.caller or other.place > one.place
                other.passed_by[one.caller] += 1

    @precondition(lambda self: self.released)
    @rule()
    def return_to_place(self):
        one = self.released.pop()
        self.returned += 1
        for other in self.waiting:
            other.passed_by[one.caller] -= other.priority == one.priority
        self.line.add(one)
        self.waiting.append(one)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        one = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(one)
        assert self.line.remove(one)
        self.left[one.caller, one.priority] += 1

    @invariant()
    def all_that_wait_are_in_the_line(self):
        assert len(self.line) == len(self.waiting) and {*self.line} == {*self.waiting}

    @invariant()
    def nobody_is_starved(self):
        """Each other caller is served once for each turn of the one that waits, and once in the current round."""
        for one in self.waiting:
            for caller in {"a", "b", "c", "d"} - {one.caller}:
                turns = one.own_ahead + 2 + self.left[one.caller, one.priority]
                assert one.passed_by[caller] <= turns + self.returned


TestLine = LineMachine.TestCase


@given(
    hog=st.integers(1, 50),
    others=st.lists(st.sampled_from("bcd"), min_size=1, max_size=3, unique=True),
)
def test_a_new_caller_waits_for_one_request_of_each_other_caller_at_most(hog, others):
    line = Line(LIMIT)
    for _ in range(hog):
        arrive(line, "a")
    for caller in others:
        arrive(line, caller)
    newcomer = arrive(line, "z")
    order = []
    while (one := line.release()) is not newcomer:
        order.append(one.caller)
        arrive(line, "a")  # more requests of a busy caller don't delay it
    assert Counter(order) == Counter(["a", *others])


def test_the_caller_with_more_than_its_share_gives_up_its_newest_place():
    line = Line(4)
    *_, newest = [arrive(line, "a") for _ in range(3)]
    arrive(line, "b")
    assert line.full
    assert line.surplus("c", 0) is newest
    assert line.surplus("b", 0) is newest
    assert line.surplus("a", 0) is None


def test_a_place_is_not_given_up_for_a_caller_that_would_then_hold_as_many():
    line = Line(2)
    arrive(line, "a")
    arrive(line, "b")
    assert line.surplus("a", 0) is line.surplus("b", 0) is line.surplus("c", 0) is None


def test_the_lowest_priority_gives_up_its_place_first():
    line = Line(4)
    for priority in (5, 1, 5, 1):
        arrive(line, "a", priority)
    assert line.surplus("b", 9).priority == 1
    assert line.surplus("b", 0) is None, "a higher priority gives up nothing"


def test_a_begun_stream_keeps_its_place():
    line = Line(3)
    arrive(line, "a")
    new = arrive(line, "a")
    arrive(line, "a", begun=True)
    assert line.surplus("b", 0) is new


def test_a_callers_second_request_waits_for_a_bounded_number_of_newcomers():
    line = Line(LIMIT)
    for _ in range(2):
        arrive(line, "patient")
    line.release()
    for number in range(2 * LIMIT):
        arrive(line, f"address {number}")
        if line.release().caller == "patient":
            break
    assert not any(one.caller == "patient" for one in line)
