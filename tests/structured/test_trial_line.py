"""The order of trials of grammars, and the shares of their callers."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.requests.errors import QueueFullError, ShareUsedError
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_line import (
    MAX_RUNNING_OF_CALLER,
    MAX_WAITING,
    MAX_WAITING_OF_CALLER,
    PendingTrial,
    TrialLine,
)
from engine_server.structured.trial_process import MAX_FORKS

PARAMS = StructuredOutputsParams(regex="a")
CALLERS = ("a", "b", "c", None)


def trial(caller: str | None, number: int) -> PendingTrial:
    return PendingTrial(caller, str(number).encode(), PARAMS)


def begin_all(line: TrialLine) -> list[PendingTrial]:
    """Return the trials that may run now."""
    return list(iter(line.begin_next, None))


def test_a_caller_runs_two_trials_and_leaves_room_for_another() -> None:
    line = TrialLine()
    for number in range(10):
        line.add(trial("a", number))
    assert len(begin_all(line)) == MAX_RUNNING_OF_CALLER < MAX_FORKS
    line.add(trial("b", 0))
    assert [one.caller for one in begin_all(line)] == ["b"]


def test_requests_without_a_caller_may_run_as_many_trials_as_there_are_forks() -> None:
    line = TrialLine()
    for number in range(10):
        line.add(trial(None, number))
    assert [one.digest for one in begin_all(line)] == [b"0", b"1", b"2", b"3"]


def test_callers_take_turns_whatever_the_lengths_of_their_lines() -> None:
    line = TrialLine()
    for number in range(20):
        line.add(trial("many", number))
    running = begin_all(line)
    for number in range(3):
        line.add(trial("few", number))
        line.add(trial("one more", number))
    order = []
    while running:
        line.end(running.pop(0))
        started = begin_all(line)
        order += [one.caller for one in started]
        running += started
    assert order[:9].count("few") == order[:9].count("one more") == 3


def test_a_caller_beyond_its_share_is_refused_and_others_are_not() -> None:
    line = TrialLine()
    for number in range(MAX_WAITING_OF_CALLER):
        line.add(trial("a", number))
    with pytest.raises(ShareUsedError, match="of this caller"):
        line.add(trial("a", MAX_WAITING_OF_CALLER))
    line.add(trial("b", 0))


def test_a_full_line_takes_no_trial_until_one_is_withdrawn() -> None:
    line = TrialLine()
    trials = [trial(None, number) for number in range(MAX_WAITING)]
    for one in trials:
        line.add(one)
    with pytest.raises(QueueFullError, match=f"{MAX_WAITING} at most"):
        line.add(trial("a", 0))
    line.withdraw(trials[5])
    line.add(trial("a", 0))


@given(st.lists(st.tuples(st.sampled_from(("add", "begin", "end", "withdraw")), st.sampled_from(CALLERS))))
def test_each_trial_runs_once_unless_it_was_withdrawn(actions: list[tuple[str, str | None]]) -> None:
    line, numbers = TrialLine(), count()
    waiting: list[PendingTrial] = []
    running: list[PendingTrial] = []
    for action, caller in actions:
        if action == "add":
            waiting.append(trial(caller, next(numbers)))
            line.add(waiting[-1])
        elif action == "begin" and (begun := line.begin_next()):
            assert begun is next(one for one in waiting if one.caller == begun.caller)
            waiting.remove(begun)
            running.append(begun)
        elif action == "end" and running:
            ended = running.pop(0)
            assert line.end(ended) and not line.end(ended)
        elif action == "withdraw" and waiting:
            line.withdraw(waiting.pop())
        callers = [one.caller for one in running]
        assert len(running) <= MAX_FORKS
        assert all(callers.count(one) <= MAX_RUNNING_OF_CALLER for one in callers if one is not None)
    for one in (*waiting, *running):
        assert line.find(one.caller, one.digest) is one
    while waiting or running:
        for one in running:
            line.end(one)
        running = begin_all(line)
        assert running or not waiting
        waiting = [one for one in waiting if one not in running]
    assert line.begin_next() is None
