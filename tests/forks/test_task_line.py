"""The order of tasks, and the shares of their callers."""

from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.forks.task_line import PendingTask, Shares, TaskLine
from engine_server.requests.errors import QueueFullError, ShareUsedError

SHARES = Shares(running=4, running_of_caller=2, waiting=100, waiting_of_caller=20)
CALLERS = ("a", "b", "c", None)


def task(caller: str | None, number: int) -> PendingTask[None]:
    return PendingTask(caller, str(number).encode(), msgspec.Struct())


def new_line() -> TaskLine[None]:
    return TaskLine("new things", "to be made", SHARES)


def begin_all(line: TaskLine[None]) -> list[PendingTask[None]]:
    """Return the tasks that may run now."""
    return list(iter(line.begin_next, None))


def test_a_caller_runs_two_tasks_and_leaves_room_for_another() -> None:
    line = new_line()
    for number in range(10):
        line.add(task("a", number))
    assert len(begin_all(line)) == SHARES.running_of_caller < SHARES.running
    line.add(task("b", 0))
    assert [one.caller for one in begin_all(line)] == ["b"]


def test_requests_without_a_caller_may_run_as_many_tasks_as_there_are_forks() -> None:
    line = new_line()
    for number in range(10):
        line.add(task(None, number))
    assert [one.digest for one in begin_all(line)] == [b"0", b"1", b"2", b"3"]


def test_callers_take_turns_whatever_the_lengths_of_their_lines() -> None:
    line = new_line()
    for number in range(20):
        line.add(task("many", number))
    running = begin_all(line)
    for number in range(3):
        line.add(task("few", number))
        line.add(task("one more", number))
    order = []
    while running:
        line.end(running.pop(0))
        started = begin_all(line)
        order += [one.caller for one in started]
        running += started
    assert order[:9].count("few") == order[:9].count("one more") == 3


def test_a_caller_beyond_its_share_is_refused_and_others_are_not() -> None:
    line = new_line()
    for number in range(SHARES.waiting_of_caller):
        line.add(task("a", number))
    with pytest.raises(ShareUsedError, match="of this caller"):
        line.add(task("a", SHARES.waiting_of_caller))
    line.add(task("b", 0))


def test_a_full_line_takes_no_task_until_one_is_withdrawn() -> None:
    line = new_line()
    tasks = [task(None, number) for number in range(SHARES.waiting)]
    for one in tasks:
        line.add(one)
    with pytest.raises(QueueFullError, match=f"{SHARES.waiting} at most"):
        line.add(task("a", 0))
    line.withdraw(tasks[5])
    line.add(task("a", 0))


@given(st.lists(st.tuples(st.sampled_from(("add", "begin", "end", "withdraw")), st.sampled_from(CALLERS))))
def test_each_task_runs_once_unless_it_was_withdrawn(actions: list[tuple[str, str | None]]) -> None:
    line, numbers = new_line(), count()
    waiting: list[PendingTask[None]] = []
    running: list[PendingTask[None]] = []
    for action, caller in actions:
        if action == "add":
            waiting.append(task(caller, next(numbers)))
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
        assert len(running) <= SHARES.running
        assert all(callers.count(one) <= SHARES.running_of_caller for one in callers if one is not None)
    for one in (*waiting, *running):
        assert line.find(one.caller, one.digest) is one
    while waiting or running:
        for one in running:
            line.end(one)
        running = begin_all(line)
        assert running or not waiting
        waiting = [one for one in waiting if one not in running]
    assert line.begin_next() is None
