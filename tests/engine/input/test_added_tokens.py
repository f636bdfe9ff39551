"""The places of added tokens in a text."""

import re

from hypothesis import given
from hypothesis import strategies as st

from engine_server.engine.input.added_tokens import longest_of

strings = st.text("ab<|\n ", min_size=1, max_size=5)


def spans(texts: set[str], text: str) -> list[tuple[int, int]]:
    """Return where the longest of the texts that begin at the leftmost place are, one behind the other."""
    found, start = [], 0
    while start < len(text):
        length = max((len(one) for one in texts if text.startswith(one, start)), default=0)
        if length:
            found.append((start, start + length))
        start += length or 1
    return found


@given(
    st.sets(strings, min_size=1, max_size=12),
    st.lists(strings | st.sampled_from(["<|a", "<|ab|>", "<"])).map("".join),
)
def test_pattern_matches_the_longest_of_the_leftmost(texts: set[str], text: str) -> None:
    matches = re.finditer(longest_of(sorted(texts)), text)
    assert [match.span() for match in matches] == spans(texts, text)
