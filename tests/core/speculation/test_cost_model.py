"""The choice of the numbers of drafts, compared with trying all of them."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import tiered

from engine_server.core.draft_state.acceptance import Acceptance
from engine_server.core.speculation.cost_model import (
    ADVANCE,
    HOST_STEPS,
    TRIAL_SHARE,
    DraftAllocation,
    Floats,
    best_lengths,
    saved_seconds,
    seconds_by_rows,
)

MOST_ROWS = 40
FREE = np.zeros(20)

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=3)
durations = st.floats(1e-4, 1)
step_costs = st.dictionaries(st.integers(2, 30), durations, max_size=4).flatmap(
    lambda measured: durations.map(lambda one: seconds_by_rows(measured | {1: one}, MOST_ROWS))
)
draft_costs = st.one_of(st.just(FREE), step_costs)


def rate(lengths: tuple[int, ...], p: list[float], rows: int, step: Floats, draft: Floats) -> float:
    """Return the expected tokens per second."""
    tokens = len(p) + sum(q**i for q, length in zip(p, lengths, strict=True) for i in range(1, length + 1))
    drafting = sum(draft[sum(length >= i for length in lengths)] for i in range(1, max(lengths) + 1))
    return tokens / float(step[rows + sum(lengths)] + drafting)


def lengths_of(p: list[float], limit: int, step: Floats, draft: Floats = FREE) -> list[int]:
    return best_lengths(np.array(p), np.full(len(p), limit), len(p), step, draft).tolist()


@given(st.data(), probabilities, st.integers(0, 10), step_costs, draft_costs)
def test_the_choice_is_the_best_of_all_where_drafts_are_free_and_never_worse_than_none(
    data: st.DataObject, p: list[float], prefilled: int, step: Floats, draft: Floats
) -> None:
    limits = [data.draw(st.integers(0, 3)) for _ in p]
    rows = len(p) + prefilled

    chosen = tuple(best_lengths(np.array(p), np.array(limits), rows, step, draft).tolist())

    assert all(0 <= length <= limit for length, limit in zip(chosen, limits, strict=True))
    rates = {
        lengths: rate(lengths, p, rows, step, draft)
        for lengths in product(*(range(limit + 1) for limit in limits))
    }
    assert rates[chosen] <= max(rates.values()) * (1 + 1e-9)
    assert rates[chosen] >= rates[(0,) * len(p)] * (1 - 1e-9)
    if draft is FREE:
        assert rates[chosen] >= max(rates.values()) * (1 - 1e-9)


@given(st.lists(st.just(0.0), min_size=1, max_size=4), step_costs, draft_costs)
def test_no_drafts_where_none_are_accepted(p: list[float], step: Floats, draft: Floats) -> None:
    assert lengths_of(p, 4, step, draft) == [0] * len(p)


def test_no_drafts_where_each_row_takes_as_long_as_the_first() -> None:
    assert lengths_of([0.99, 0.5], 8, seconds_by_rows({1: 0.01}, MOST_ROWS)) == [0, 0]


def test_all_drafts_where_rows_take_no_time_until_they_do() -> None:
    step = seconds_by_rows({1: 0.01, 16: 0.01, 17: 1.0}, MOST_ROWS)

    assert sum(lengths_of([0.5, 0.1, 0.9], 8, step)) == 16 - 3


def test_no_drafts_where_the_draft_model_takes_as_long_as_the_model() -> None:
    step = seconds_by_rows({1: 0.01, 32: 0.01}, MOST_ROWS)

    assert lengths_of([0.9], 8, step, draft=seconds_by_rows({1: 0.01, 8: 0.01}, 8)) == [0]
    assert lengths_of([0.9], 8, step, draft=seconds_by_rows({1: 0.0001, 8: 0.0001}, 8)) == [8]


def test_a_step_holds_no_more_rows_than_the_largest() -> None:
    step = seconds_by_rows({1: 0.01, 5: 0.01}, 5)

    assert lengths_of([0.9, 0.8], 8, step) == [2, 1]
    assert lengths_of([0.9] * 5, 8, step) == [0] * 5


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2), step_costs, draft_costs)
def test_a_likelier_request_gets_no_fewer_drafts(p: list[float], step: Floats, draft: Floats) -> None:
    fewer, more = (lengths_of([value], 8, step, draft)[0] for value in sorted(p))

    assert fewer <= more


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4), step_costs, draft_costs)
def test_of_a_batch_the_likelier_requests_get_no_fewer_drafts(
    p: list[float], step: Floats, draft: Floats
) -> None:
    lengths = lengths_of(p, 4, step, draft)

    for (less, fewer), (likelier, more) in permutations(zip(p, lengths, strict=True), 2):
        assert less >= likelier or fewer <= more


def test_seconds_are_linear_between_the_measured_rows_and_beyond() -> None:
    seconds = seconds_by_rows({1: 1.0, 3: 2.0, 5: 6.0}, 7)

    assert seconds == pytest.approx([0.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0, 10.0])


def test_more_rows_never_take_less_time_whatever_was_measured() -> None:
    seconds = seconds_by_rows({1: 1.0, 2: 0.9, 4: 1.2, 8: 1.1}, 16)

    assert (np.diff(seconds) >= 0).all()


@pytest.mark.more
@pytest.mark.parametrize(
    ("requests", "row"), tiered(product([1, 8], [0.0001, 0.001, 0.01]), (8, 0.001), more=[(1, 0.01)])
)
def test_requests_without_acceptance_are_tried_in_turn_within_one_percent_of_the_time(
    row: float, requests: int
) -> None:
    step = seconds_by_rows({1: 0.01, 2: 0.01 + row}, MOST_ROWS)
    allocation = DraftAllocation(step, FREE)
    acceptances = [Acceptance(0.0) for _ in range(requests)]

    tried = [0] * requests
    seconds = 0.0
    for _ in range(1000 * requests):
        lengths = allocation.allot(acceptances, [4] * requests, requests, [0.0] * requests)
        seconds += step[requests + sum(lengths)] - step[requests]
        tried = [count + length for count, length in zip(tried, lengths, strict=True)]

    assert seconds <= TRIAL_SHARE * 1000 * requests * step[requests] * (1 + 1e-6)
    assert min(tried) >= 9
    assert max(tried) - min(tried) <= 1


def test_a_request_whose_drafts_are_accepted_again_soon_gets_more() -> None:
    allocation = DraftAllocation(seconds_by_rows({1: 0.01, 32: 0.02}, MOST_ROWS), FREE)
    acceptance = Acceptance(0.0)

    lengths: list[int] = []
    for _ in range(50):
        lengths += allocation.allot([acceptance], [8], 1, [0.0])
        acceptance.update(lengths[-1], lengths[-1])

    assert lengths[0] == 0
    assert lengths[-1] == 8


def test_a_request_without_proposals_is_not_tried() -> None:
    allocation = DraftAllocation(seconds_by_rows({1: 0.01, 32: 0.013}, MOST_ROWS), FREE)

    assert all(allocation.allot([Acceptance()], [0], 1, [0.0]) == [0] for _ in range(200))


@pytest.mark.parametrize(("host_seconds", "lengths"), [(0.0, [1]), (0.4, [1]), (0.6, [0]), (2.0, [0])])
def test_drafts_must_save_the_hosts_time_where_steps_overlap(host_seconds: float, lengths: list[int]) -> None:
    """A step with a draft yields 1.5 tokens; without one, the host's time and the device's second overlap."""
    step = seconds_by_rows({1: 1.0, 32: 1.0}, 2)

    found = best_lengths(np.array([0.5]), np.array([1]), 1, step, FREE, host_seconds)

    assert found.tolist() == lengths


def test_hosts_time_is_that_of_most_of_the_latest_steps() -> None:
    allocation = DraftAllocation(seconds_by_rows({1: 1.0, 32: 1.0}, MOST_ROWS), FREE)
    for seconds in [100.0, *[0.4] * 4, 100.0]:
        allocation.observe_host(seconds)
    assert allocation.may_pay([Acceptance(0.5)], [1], 1, [0.0])
    for _ in range(HOST_STEPS):
        allocation.observe_host(0.6)
    assert not allocation.may_pay([Acceptance(0.5)], [1], 1, [0.0])


def test_trials_between_overlapped_steps_pay_for_the_hosts_time() -> None:
    step = seconds_by_rows({1: 0.01, 2: 0.011}, MOST_ROWS)
    allocation = DraftAllocation(step, FREE)
    for _ in range(HOST_STEPS):
        allocation.observe_host(0.004)
    acceptance, num_trials = Acceptance(0.0), 0
    for _ in range(1000):
        if allocation.may_pay([acceptance], [4], 1, [0.0]):
            assert allocation.allot([acceptance], [4], 1, [0.0]) == [1]
            num_trials += 1
    assert 18 <= num_trials <= TRIAL_SHARE * 1000 * 0.01 / (0.004 + 0.001)


def test_a_full_step_has_no_trial() -> None:
    allocation = DraftAllocation(seconds_by_rows({1: 0.01, 2: 0.01}, 2), FREE)

    assert all(allocation.allot([Acceptance(0.0)] * 2, [4, 4], 2, [0.0] * 2) == [0, 0] for _ in range(200))


def test_drafts_pay_in_small_steps_alone() -> None:
    """Up to 8 rows a step takes the same time, and then in proportion to its rows."""
    step_seconds = np.maximum(8, np.arange(MOST_ROWS + 1))
    allocation = DraftAllocation(step_seconds, FREE)
    assert allocation.pays(4, probability=0.5)
    assert not allocation.pays(4, probability=0.0)
    assert not allocation.pays(16, probability=0.5)


@given(st.data(), probabilities, step_costs, draft_costs)
def test_saved_time_is_that_of_the_same_tokens_without_drafts_less_the_steps_own(
    data: st.DataObject, p: list[float], step: Floats, draft: Floats
) -> None:
    lengths = tuple(data.draw(st.integers(0, 3)) for _ in p)
    usual, own = (rate(some, p, len(p), step, draft) for some in ((0,) * len(p), lengths))
    tokens = len(p) + sum(q**i for q, length in zip(p, lengths, strict=True) for i in range(1, length + 1))

    saved = saved_seconds(np.array(p), np.array(lengths), len(p), step, draft)

    assert saved == pytest.approx(tokens / usual - tokens / own)


@pytest.mark.parametrize(
    ("answer", "debt"), tiered(product([3, 40, 1000], [0.005, 0.2, 3.0]), (3, 3.0), (40, 0.2), (40, 0.005))
)
def test_requests_whose_prompts_a_drafter_must_compute_first_are_not_slower_than_without_drafts(
    debt: float, answer: int
) -> None:
    """One request after another has an answer of so many tokens, and every draft is accepted."""
    step, draft = seconds_by_rows({1: 0.010, 9: 0.020}, MOST_ROWS), seconds_by_rows({1: 0.001}, MOST_ROWS)
    allocation, seconds, num_requests = DraftAllocation(step, draft), 0.0, 60
    for _ in range(num_requests):
        acceptance, rest, owed = Acceptance(1.0), answer, debt
        while rest > 0:
            (length,) = allocation.allot([acceptance], [min(8, rest - 1)], 1, [owed])
            seconds += float(step[1 + length] + length * draft[1]) + (owed if length else 0.0)
            owed = 0.0 if length else owed
            rest -= 1 + length

    without = num_requests * answer * float(step[1])
    assert seconds <= without * (1 + TRIAL_SHARE) + ADVANCE
    if debt < 0.1 * answer * step[1]:
        assert seconds < 0.6 * without


def test_the_smallest_debts_are_paid_first() -> None:
    step = seconds_by_rows({1: 1.0, 32: 1.0}, MOST_ROWS)

    lengths = DraftAllocation(step, FREE).allot(
        [Acceptance(0.9)] * 3, [2, 2, 2], 3, [0.7, 0.4 * ADVANCE, 0.5]
    )

    assert lengths == [0, 2, 2]
