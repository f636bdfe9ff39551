"""The number of tokens that belong to the reasoning."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.server.parsers.reasoning_tokens import ReasoningTokens

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


@given(st.lists(st.integers(6, 10)), st.integers(1, 5))
def test_count_does_not_depend_on_the_division_of_the_tokens(tokens: list[int], pieces: int) -> None:
    assert count(tokens, pieces=pieces) == count(tokens, pieces=1 + len(tokens))
