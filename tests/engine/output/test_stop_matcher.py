"""Incremental stop matching, compared with a naive search, and its complexity."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.engine.output.stop_matcher import StopAutomaton, StopMatch, StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5)
TEXT = st.text("abc", max_size=30)


def first_match(text: str, stops: Sequence[str]) -> StopMatch | None:
    """Return the longest stop string that ends at the first character at which any ends."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return StopMatch(max(found, key=len), end)
    return None


def longest_partial(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of the text that is a proper prefix of a stop string."""
    ends = (len(text) - start for start in range(len(text)))
    return max(
        (size for size in ends if any(s != text[-size:] and s.startswith(text[-size:]) for s in stops)),
        default=0,
    )


@given(text=TEXT, stops=STOPS, cuts=st.sets(st.integers(0, 30)))
def test_stop_matcher_equals_a_naive_search_for_any_division_of_the_text(
    text: str, stops: list[str], cuts: set[int]
) -> None:
    matcher, found, start = StopMatcher(StopAutomaton(stops)), None, 0
    for end in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        if match := matcher.find(text[start:end]):
            found = StopMatch(match.stop, start + match.end)
            break
        assert matcher.partial == longest_partial(text[:end], stops)
        start = end
    assert found == first_match(text, stops)


@given(text=TEXT, stops=STOPS)
def test_text_that_is_fed_without_matching_still_begins_later_matches(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopAutomaton(stops))
    matcher.feed(text)
    assert matcher.partial == longest_partial(text, stops)
    for stop in stops:
        rest = stop[-1]
        longer = [one for one in stops if (text + rest).endswith(one)]
        found = StopMatcher(StopAutomaton(stops))
        found.feed(text)
        assert (found.find(rest) is not None) == bool(longer)


class CountingTable(dict[str, int]):
    """A state's transitions, which count their lookups."""

    reads = 0

    def get(self, key: str, default: int | None = None) -> int | None:  # type: ignore[override]
        type(self).reads += 1
        return super().get(key, default)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["a" * 2000 + "b"], "a" * 10_000),
        (["a" * 2000 + "b"], ("a" * 1999 + "c") * 5),
        ([f"{'a' * size}b" for size in range(1, 100)], "a" * 10_000),
        (
            ["".join(chr(97 + (number >> bit) % 2) for bit in range(12)) + "z" for number in range(4096)],
            "ab" * 5_000,
        ),
    ],
    ids=["one long stop string", "restarts", "many stop strings", "a full tree"],
)
def test_stop_matching_takes_time_linear_in_the_text(
    stops: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    automaton = StopAutomaton(stops)
    automaton.next = [CountingTable(table) for table in automaton.next]
    monkeypatch.setattr(CountingTable, "reads", 0)
    matcher = StopMatcher(automaton)
    for character in text:
        assert matcher.find(character) is None
    assert CountingTable.reads <= 2 * len(text)


def test_stop_automaton_size_is_linear_in_the_stop_strings() -> None:
    stops = ["a" * 2000 + "b", "a" * 1000 + "c"]
    assert len(StopAutomaton(stops).next) <= sum(map(len, stops)) + 1
