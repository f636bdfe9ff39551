"""The estimate of a request's acceptance rate."""

import random

import pytest

from engine_server.core.draft_state.acceptance import Acceptance


def after(*steps: tuple[int, int]) -> float:
    acceptance = Acceptance()
    for drafted, accepted in steps:
        acceptance.update(drafted, accepted)
    return acceptance.probability


def test_a_step_without_drafts_is_no_evidence() -> None:
    assert after((0, 0)) == Acceptance().probability


def test_accepted_drafts_raise_the_estimate_and_rejected_ones_lower_it() -> None:
    assert after((3, 3)) > after((1, 1)) > Acceptance().probability > after((1, 0))


def test_drafts_after_a_rejected_one_are_no_evidence() -> None:
    assert after((8, 2)) == after((3, 2))


def test_drafts_count_the_same_in_one_step_and_in_several() -> None:
    assert after((4, 2)) == pytest.approx(after((1, 1), (1, 1), (1, 0)))


def test_the_first_drafts_outweigh_the_prior() -> None:
    assert after((4, 4)) > 0.8
    assert after((1, 0), (1, 0), (1, 0)) < 0.25


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_the_estimate_follows_the_rate(rate: float) -> None:
    dice = random.Random(0)
    acceptance, total = Acceptance(), 0.0
    for _ in range(2000):
        accepted = next((i for i in range(4) if dice.random() >= rate), 4)
        acceptance.update(4, accepted)
        total += acceptance.probability

    # Updates come after a step's rejection, where the mean is lowest.
    assert total / 2000 == pytest.approx(rate, abs=0.1)
    assert 0 <= acceptance.probability <= 1
