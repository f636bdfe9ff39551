"""The number of tokens that belong to the reasoning."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.reasoning import ReasoningBudget, ReasoningTokens

START, END = (7, 8), (9,)


def count(tokens: list[int], *, inside: bool = False, pieces: int = 1) -> int:
    counter = ReasoningTokens(START, END, inside)
    return sum(counter.count(tokens[start : start + pieces]) for start in range(0, len(tokens), pieces))


def test_tokens_between_the_delimiters_are_counted() -> None:
    assert count([1, 7, 8, 2, 3, 4, 9, 5]) == 3


def test_reasoning_that_the_prompt_opened_is_counted_from_the_first_token() -> None:
    assert count([2, 3, 9, 5], inside=True) == 2


def test_reasoning_that_is_cut_is_counted() -> None:
    assert count([7, 8, 2, 3]) == 2


def test_incomplete_delimiter_opens_nothing() -> None:
    assert count([7, 1, 8, 2]) == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(6, 10)), st.integers(1, 5))
def test_count_does_not_depend_on_the_division_of_the_tokens(tokens: list[int], pieces: int) -> None:
    assert count(tokens, pieces=pieces) == count(tokens, pieces=1 + len(tokens))


def test_end_delimiter_goes_on_from_the_longest_beginning_of_it() -> None:
    reasoning = ReasoningTokens((), (9, 8, 9, 7), inside=True)
    for token_id, following in [(1, 9), (9, 8), (8, 9), (9, 7), (8, 9), (1, 9)]:
        reasoning.count([token_id])
        assert reasoning.next_of_end() == following
    assert reasoning.inside


def test_delimiters_share_no_tokens() -> None:
    reasoning = ReasoningTokens((7, 8), (8, 9), inside=False)
    assert reasoning.count([7, 8, 9]) == 1
    assert reasoning.inside


def test_budget_without_a_delimiter_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="end is"):
        ReasoningBudget(tokens=3, end=[])
