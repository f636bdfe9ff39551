"""Drafts by prompt lookup, compared with a search through all tokens."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.core.draft_state.ngram_index import NgramIndex

# Few different tokens, so that n-grams recur; 0 and the largest are the keys' edge cases.
tokens = st.lists(st.sampled_from([0, 1, 2, 2**32 - 1]), max_size=40)


def indexed(token_ids: list[int], shortest: int, longest: int) -> NgramIndex:
    index = NgramIndex(shortest, longest)
    index.extend(token_ids)
    return index


def search(token_ids: list[int], shortest: int, longest: int, most: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == token_ids[len(token_ids) - n :]:
                text = token_ids.copy()
                for i in range(most):
                    text.append(text[start + n + i])
                return text[len(token_ids) :]
    return []


@given(st.data(), tokens, st.integers(1, 4), st.integers(0, 3), st.integers(1, 8))
def test_proposals_equal_those_of_a_search(
    data: st.DataObject, token_ids: list[int], shortest: int, more: int, most: int
) -> None:
    index = NgramIndex(shortest, shortest + more)
    known = 0
    while known < len(token_ids):
        count = data.draw(st.integers(1, len(token_ids) - known))
        index.extend(token_ids[known : known + count])
        known += count

        expected = search(token_ids[:known], shortest, shortest + more, most)
        assert index.propose(most) == expected
    assert len(index) == len(token_ids)


def test_the_longest_suffix_wins_over_a_later_occurrence_of_a_shorter_one() -> None:
    index = indexed([1, 2, 3, 7, 9, 3, 8, 1, 2, 3], shortest=1, longest=3)

    assert index.propose(2) == [7, 9]


def test_the_latest_occurrence_wins() -> None:
    index = indexed([1, 2, 5, 1, 2, 6, 1, 2], shortest=2, longest=2)

    assert index.propose(1) == [6]


def test_periodic_text_is_continued_past_the_last_token() -> None:
    index = indexed([4, 1, 2, 3, 1, 2, 3], shortest=1, longest=3)

    assert index.propose(7) == [1, 2, 3, 1, 2, 3, 1]


def test_nothing_is_proposed_where_no_suffix_recurs() -> None:
    assert indexed([1, 2, 3, 4], shortest=1, longest=3).propose(4) == []
    assert indexed([], shortest=1, longest=3).propose(4) == []
    assert indexed([1, 2, 1], shortest=2, longest=3).propose(4) == []


def test_shorter_text_than_an_n_gram_is_not_taken_for_one_that_begins_with_token_zero() -> None:
    index = indexed([0, 0, 1, 5, 1], shortest=3, longest=3)

    assert index.propose(1) == []
