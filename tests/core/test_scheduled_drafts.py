"""Drafts in the scheduler: parts of a step, and the choice of the tokens that hold."""

from typing import Any

from scheduling import EOS, make, request, run

from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import UNKNOWN, GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.requests.sampling_params import SamplingParams


def drafting(
    drafts: list[int], max_tokens: int, **arguments: Any
) -> tuple[Scheduler, GenerationRequest, Batch]:
    """Return a scheduler, its only request with one output token, and the batch of the step that verifies drafts."""
    scheduler = make(**{"num_blocks": 10, "budget": 64, "seats": 1, **arguments})
    one = request("r", 6, max_tokens)
    scheduler.add(one)
    run(scheduler, scheduler.schedule())
    one.drafts = drafts
    return scheduler, one, scheduler.schedule()


def test_drafts_are_accepted_up_to_the_first_wrong_one() -> None:
    scheduler, one, batch = drafting([3, 4, 5], 20)
    assert [(part.start, part.num_tokens, part.draft) for part in batch] == [
        (6, 1, 3), (7, 1, 4), (8, 1, 5), (9, 1, UNKNOWN),
    ]  # fmt: skip
    [step] = scheduler.update(batch, [StepResult([token]) for token in (3, 4, 6, 9)])
    assert step.new_token_ids == [3, 4, 6]
    assert (one.token_ids[6:], one.computed) == ([7, 3, 4, 6], 9)
    stats = scheduler.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 2)
    assert stats.accepted_per_position == [1, 1]
    assert not scheduler.stats().num_drafts
    [following] = scheduler.schedule()
    assert (following.start, following.num_tokens) == (9, 1)
    check_integrity(scheduler)


def test_token_after_accepted_drafts_is_a_result_too() -> None:
    scheduler, one, batch = drafting([3, 4], 20)
    [step] = scheduler.update(batch, [StepResult([token]) for token in (3, 4, 5)])
    assert step.new_token_ids == [3, 4, 5]
    assert (one.pending, one.computed) == (1, 9)


def test_drafts_end_where_the_request_must() -> None:
    scheduler, _, batch = drafting([3, 4, 5, 6], 4)
    assert len(batch) == 3  # two drafts: the last token needs none
    [step] = scheduler.update(batch, [StepResult([token]) for token in (3, 4, 5)])
    assert (step.new_token_ids, step.finish_reason) == ([3, 4, 5], "length")
    check_integrity(scheduler)


def test_draft_of_a_stop_token_ends_the_request_if_it_is_right() -> None:
    scheduler, _, batch = drafting([EOS, 4], 20)
    [step] = scheduler.update(batch, [StepResult([token]) for token in (EOS, 4, 5)])
    assert (step.new_token_ids, step.finish_reason) == ([EOS], "stop")
    check_integrity(scheduler)


def test_error_after_a_wrong_draft_has_no_effect() -> None:
    scheduler, _, batch = drafting([3, 4], 20)
    [step] = scheduler.update(batch, [StepResult([2]), StepResult([0], error="no token"), StepResult([0])])
    assert (step.new_token_ids, step.finish_reason) == ([2], None)


def test_error_after_a_right_draft_ends_the_request_in_the_next_step() -> None:
    scheduler, _, batch = drafting([3, 4], 20)
    [step] = scheduler.update(batch, [StepResult([3]), StepResult([0], error="no token"), StepResult([0])])
    assert (step.new_token_ids, step.finish_reason) == ([3], None)
    [step] = scheduler.update(scheduler.schedule(), [StepResult([0], error="no token")])
    assert (step.finish_reason, step.error) == ("error", "no token")


def test_drafts_take_no_block_that_a_request_needs() -> None:
    _, _, batch = drafting([3, 4, 5], 20, num_blocks=2)
    assert len(batch) == 1


def test_drafts_take_no_running_requests_share_of_the_budget() -> None:
    scheduler = make(num_blocks=10, budget=4, seats=2)
    for name in "ab":
        scheduler.add(request(name, 2, 9))
    run(scheduler, scheduler.schedule())
    for one in scheduler.running:
        one.drafts = [3, 4, 5, 6]
    batch = scheduler.schedule()
    assert [part.request.request_id for part in batch] == ["a", "a", "a", "b"]


def test_prompt_gets_what_drafts_leave_of_the_budget() -> None:
    scheduler = make(num_blocks=10, budget=8, seats=2)
    drafting_request = request("drafts", 2, 9)
    scheduler.add(drafting_request)
    run(scheduler, scheduler.schedule())
    drafting_request.drafts = [3, 4, 5]
    scheduler.add(GenerationRequest("prompt", [50] * 20, 20, SamplingParams(), 1))

    batch = scheduler.schedule()

    assert [(part.request.request_id, part.num_tokens) for part in batch] == [
        *[("drafts", 1)] * 4,
        ("prompt", 4),
    ]
