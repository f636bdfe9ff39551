"""The work queue: one worker for a key, and at most one timer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from llm_operator import metrics
from llm_operator.control import queue as queue_module
from llm_operator.control import turns
from llm_operator.control.queue import WorkQueue
from llm_operator.control.turns import LONG_WAIT_SECONDS, MOST_EDITS, Priority
from waiting import until_async

from engine_server.contract.cluster.api import Key

KEY = Key("default", "a")


@pytest.fixture
def queue() -> Any:
    return WorkQueue()


async def test_a_key_that_is_added_twice_is_queued_once(queue: WorkQueue) -> None:
    queue.add(KEY)
    queue.add(KEY)

    assert await queue.take() == KEY
    assert queue.ready.empty()


async def test_a_key_that_is_added_during_its_work_is_queued_afterwards(queue: WorkQueue) -> None:
    queue.add(KEY)
    await queue.take()
    queue.add(KEY)
    assert queue.ready.empty()

    queue.done(KEY)

    assert await queue.take() == KEY


async def test_events_after_a_reconcile_wait_for_a_rest_and_an_edit_does_not(queue: WorkQueue) -> None:
    queue.add(KEY)
    await queue.take()
    queue.done(KEY)

    queue.add(KEY, Priority.RELIST)
    queue.add(KEY, Priority.EVENT)
    assert queue.ready.empty()

    queue.add(KEY, Priority.EDIT)
    assert await queue.take() == KEY
    queue.done(KEY)
    queue.add(KEY)
    queue.add(KEY)

    assert await queue.take() == KEY
    assert queue.ready.empty()


async def test_the_wait_of_each_key_that_is_taken_is_observed(queue: WorkQueue) -> None:
    count = "fairlead_operator_queue_seconds_count"
    before = metrics.REGISTRY.get_sample_value(count)
    assert before is not None
    queue.add(KEY)
    queue.add(KEY)
    await queue.take()
    queue.add(KEY)
    assert metrics.REGISTRY.get_sample_value(count) == before + 1

    queue.done(KEY)
    await queue.take()

    assert metrics.REGISTRY.get_sample_value(count) == before + 2


async def test_delays_double_with_each_failure_in_a_row(queue: WorkQueue) -> None:
    delays = []
    for _ in range(9):
        queue.add(KEY)
        await queue.take()
        delays.append(queue.retry(KEY))
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]

    queue.add(KEY)
    await queue.take()
    queue.done(KEY)

    queue.add(KEY)
    await queue.take()
    assert queue.retry(KEY) == 0.5


async def test_delays_stay_below_a_given_bound(queue: WorkQueue) -> None:
    delays = []
    for _ in range(6):
        queue.add(KEY)
        await queue.take()
        delays.append(queue.retry(KEY, longest=4))

    assert delays == [0.5, 1, 2, 4, 4, 4]


async def test_an_event_takes_a_key_that_failed_before_its_delay_has_ended(queue: WorkQueue) -> None:
    queue.add(KEY)
    await queue.take()
    queue.retry(KEY)

    queue.add(KEY)

    assert await queue.take() == KEY


async def test_no_event_takes_a_key_that_was_postponed(queue: WorkQueue) -> None:
    queue.add(KEY, Priority.RELIST)
    # The entry of the lower priority is left behind.
    queue.add(KEY, Priority.EDIT)
    await queue.take()
    queue.add(KEY)
    queue.postpone(KEY, 60)
    (timer,) = queue.timers.values()
    assert timer.when() >= asyncio.get_running_loop().time() + 59

    queue.add(KEY, Priority.EDIT)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.05)


async def test_a_postponed_key_is_queued_when_its_delay_has_ended(queue: WorkQueue) -> None:
    for has_event in (False, True):
        queue.add(KEY)
        await queue.take()
        queue.postpone(KEY, 0.01)
        if has_event:
            queue.add(KEY, Priority.EDIT)

        assert await asyncio.wait_for(queue.take(), 60) == KEY
        queue.done(KEY)

    assert (queue.timers, queue.postponed) == ({}, set())


async def test_a_key_that_asks_for_it_is_queued_again_without_an_event(queue: WorkQueue) -> None:
    queue.add(KEY)
    await queue.take()

    queue.done(KEY, again_after=0.01)

    await until_async(lambda: not queue.ready.empty())
    assert await queue.take() == KEY
    assert queue.timers == {}


async def test_an_event_replaces_a_pending_timer(queue: WorkQueue) -> None:
    queue.add(KEY)
    await queue.take()
    queue.done(KEY, again_after=60)
    (timer,) = queue.timers.values()

    queue.add(KEY)
    await queue.take()

    assert timer.cancelled()
    assert queue.timers == {}


async def test_keys_are_taken_in_the_order_in_which_they_were_added(queue: WorkQueue) -> None:
    keys = [Key("default", name) for name in "abc"]
    for key in keys:
        queue.add(key)

    assert [await asyncio.wait_for(queue.take(), 1) for _ in keys] == keys


async def test_namespaces_take_turns_within_a_priority(queue: WorkQueue) -> None:
    for number in range(1000):
        queue.add(Key("many", f"m{number}"), Priority.EDIT)
    queue.add(Key("one", "m"), Priority.EDIT)
    assert Key("one", "m") in [await queue.take() for _ in range(2)]


async def test_an_event_that_has_waited_is_taken_after_a_few_edits(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    for module in (queue_module, turns):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    for number in range(1000):
        queue.add(Key("many", f"m{number}"), Priority.EDIT)
    queue.add(Key("one", "m"))
    taken = [await queue.take() for _ in range(20)]
    assert Key("one", "m") not in taken
    now += LONG_WAIT_SECONDS
    taken = [await queue.take() for _ in range(MOST_EDITS + 1)]
    assert Key("one", "m") in taken
    assert sum(key.namespace == "many" for key in taken) == MOST_EDITS
