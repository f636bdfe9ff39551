"""The order of waiting requests, under each scheduling policy."""

from typing import get_args

import pytest
from scheduling import make, request, run

from engine_server.config.scheduler import SCHEDULING_POLICIES, SchedulingPolicy
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.waiting import WaitingRequests, waiting_requests

POLICIES = get_args(SchedulingPolicy)


def add(scheduler: Scheduler, name: str, priority: int = 0) -> None:
    one = request(name, 20, 15)
    one.priority = priority
    scheduler.add(one)


def test_each_policy_has_a_queue_of_its_own() -> None:
    queues = [type(waiting_requests(policy)) for policy in POLICIES]

    assert sorted(queues, key=repr) == sorted(WaitingRequests.__subclasses__(), key=repr)


@pytest.mark.parametrize("policy", POLICIES)
def test_priorities_come_before_arrival_if_the_policy_takes_them(policy: SchedulingPolicy) -> None:
    scheduler = make(num_blocks=40, budget=64, seats=1, policy=policy)
    for name, priority in (("low", 9), ("normal", 2), ("high", -1), ("also normal", 2)):
        add(scheduler, name, priority)

    by_priority = ("high", "normal", "also normal", "low")
    by_arrival = ("low", "normal", "high", "also normal")
    takes_priorities = SCHEDULING_POLICIES[policy].takes_priorities
    assert scheduler.debug_state().waiting == (by_priority if takes_priorities else by_arrival)


@pytest.mark.parametrize("policy", POLICIES)
def test_preempted_request_waits_before_those_that_arrived_later(policy: SchedulingPolicy) -> None:
    scheduler = make(num_blocks=40, budget=64, seats=1, policy=policy)
    for name in ("first", "second", "third"):
        add(scheduler, name)
    run(scheduler, scheduler.schedule())
    assert scheduler.debug_state().waiting == ("second", "third")

    scheduler.preempt_all()

    assert scheduler.debug_state().waiting == ("first", "second", "third")


@pytest.mark.parametrize("policy", POLICIES)
def test_last_request_in_order_is_preempted(policy: SchedulingPolicy) -> None:
    scheduler = make(num_blocks=12, budget=64, seats=2, caching=False, policy=policy)
    for name in ("first", "second"):
        add(scheduler, name)
    run(scheduler, scheduler.schedule())
    assert scheduler.debug_state().running == ("first", "second")

    while len(scheduler.running) == 2:
        run(scheduler, scheduler.schedule())

    state = scheduler.debug_state()
    assert (state.running, state.waiting) == (("first",), ("second",))
