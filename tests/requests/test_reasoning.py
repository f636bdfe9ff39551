"""The tokens that belong to the reasoning, between marks of one token and of text."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.reasoning import NAME_BYTES, Mark, Reasoning, ReasoningTracker

# Each byte is a token of its value, and some texts are tokens.
TEXTS = [
    b"<think>",
    b"</think>",
    b"<call>",
    b".</",
    b"think",
    b">\n",
    b"<th",
    b"ink>I",
    b"</think><think>",
    b"",
]
TOKENS = [*(bytes([byte]) for byte in range(256)), *TEXTS]
BEGIN, CLOSE, CALL, DOT_CLOSE, THINK, BREAK, BEGINNING, REST, BOTH, NOTHING = range(256, len(TOKENS))
EXACT = Reasoning(
    start=[Mark("<think>", [BEGIN], exact=True)],
    end=[Mark("</think>", [CLOSE], exact=True)],
    calls=[Mark("<call>", [CALL], exact=True)],
)
CALLED = Reasoning(start=EXACT.start, end=EXACT.end, calls=EXACT.calls, called=r"\s*(?:now|nowhere)\(")
SPELLED = Reasoning(
    start=[Mark("<think>", list(b"<think>"), exact=False)],
    end=[Mark("</think>", list(b"</think>"), exact=False), Mark("[/T]", list(b"[/T]"), exact=False)],
)


def opened(reasoning: Reasoning) -> Reasoning:
    return msgspec.structs.replace(reasoning, inside=True)


def read(reasoning: Reasoning, token_ids: Sequence[int]) -> ReasoningTracker:
    tracker = ReasoningTracker(reasoning, TOKENS)
    tracker.count(token_ids)
    return tracker


def position(tracker: ReasoningTracker) -> tuple[int, bool]:
    return tracker.total, tracker.inside


def test_tokens_between_marks_of_one_token_are_counted() -> None:
    assert position(read(EXACT, [*b"a", BEGIN, *b"bcd", CLOSE, *b"e"])) == (3, False)


def test_reasoning_that_the_prompt_opened_is_counted_from_the_first_token() -> None:
    assert position(read(opened(EXACT), [*b"abc", CLOSE, *b"d"])) == (3, False)


def test_reasoning_that_is_cut_is_counted() -> None:
    assert position(read(EXACT, [BEGIN, *b"ab"])) == (2, True)


def test_letters_of_a_mark_of_one_token_are_text() -> None:
    assert position(read(opened(EXACT), b"a</think>b")) == (10, True)


def test_call_ends_the_reasoning() -> None:
    assert position(read(opened(EXACT), [*b"ab", CALL, *b"c"])) == (2, False)


@pytest.mark.parametrize("text", [b"now(", b" \nnowhere(x)"])
def test_call_that_names_a_tool_ends_the_reasoning_at_its_mark(text: bytes) -> None:
    assert position(read(opened(CALLED), [*b"ab", CALL, *text])) == (2, False)
    assert position(read(opened(CALLED), [*b"ab", CALL, CALL, *text])) == (3, False)


@pytest.mark.parametrize("text", [b"", b"no", b"nobody(", b"I now(", b"nowhere"])
def test_mark_of_a_call_that_names_no_tool_is_reasoning(text: bytes) -> None:
    token_ids = [*b"ab", CALL, *text]
    assert position(read(opened(CALLED), token_ids)) == (len(token_ids), True)
    assert position(read(opened(CALLED), [*token_ids, CLOSE, *b"now("])) == (len(token_ids), False)


def test_name_of_a_tool_is_looked_for_in_limited_text() -> None:
    token_ids = [CALL, *b" " * NAME_BYTES, *b"now("]
    assert position(read(opened(CALLED), token_ids)) == (len(token_ids), True)


def test_marks_of_text_are_found_in_tokens_that_merge_them_with_other_text() -> None:
    token_ids = [BEGINNING, REST, *b" am", DOT_CLOSE, THINK, BREAK, *b"Yes"]
    assert position(read(SPELLED, token_ids)) == (5, False)


def test_token_of_a_mark_of_text_counts_as_its_text() -> None:
    assert position(read(SPELLED, [BEGIN, *b"ab", CLOSE])) == (2, False)


def test_every_end_mark_ends_the_reasoning() -> None:
    assert position(read(opened(SPELLED), b"ab[/T]c")) == (2, False)


def test_text_that_resembles_a_mark_is_reasoning() -> None:
    assert position(read(opened(SPELLED), b"</thinking")) == (10, True)


def expected(reasoning: Reasoning, token_ids: Sequence[int]) -> tuple[int, bool]:
    """Return what the tracker should, from the whole text at once."""
    text = b"".join(TOKENS[token_id] for token_id in token_ids)
    inside, place, within = reasoning.inside, 0, set()
    while True:
        marks = [mark.text.encode() for mark in (reasoning.end if inside else reasoning.start)]
        ends = [(found + len(mark), found) for mark in marks if (found := text.find(mark, place)) >= 0]
        end, begin = min(ends, default=(len(text), len(text)))
        if inside:
            within |= {*range(place, begin)}
        if not ends:
            break
        inside, place = not inside, end
    total, begin = 0, 0
    for token_id in token_ids:
        length = len(TOKENS[token_id])
        total += not within.isdisjoint(range(begin, begin + length))
        begin += length
    return total, inside


PIECES = st.one_of(
    st.sampled_from([BEGIN, CLOSE, DOT_CLOSE, THINK, BREAK, BEGINNING, REST, BOTH]).map(lambda one: [one]),
    st.sampled_from([[CALL, *b"now("], [CALL, *b"now"], [*b"("]]),
    st.sampled_from([b"<think>", b"</think>", b"[/T]", b"</th", b"ink>", b"a", b"<"]).map(list),
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_count_is_that_of_the_whole_text(pieces: list[list[int]], inside: bool) -> None:
    reasoning = opened(SPELLED) if inside else SPELLED
    token_ids = [token_id for piece in pieces for token_id in piece]
    assert position(read(reasoning, token_ids)) == expected(reasoning, token_ids)


@given(
    st.lists(PIECES, max_size=12),
    st.sampled_from([EXACT, SPELLED, opened(SPELLED), opened(CALLED)]),
    st.data(),
)
def test_position_does_not_depend_on_the_division_of_the_tokens(
    pieces: list[list[int]], reasoning: Reasoning, data: st.DataObject
) -> None:
    token_ids = [token_id for piece in pieces for token_id in piece]
    cut = data.draw(st.integers(0, len(token_ids)))
    tracker = read(reasoning, token_ids[:cut])
    fork = tracker.copy()
    fork.count([*b"</think>", BEGIN])
    counted = tracker.count(token_ids[cut:])
    whole = read(reasoning, token_ids)
    assert position(tracker) == position(whole)
    assert counted == whole.total - read(reasoning, token_ids[:cut]).total
    assert tracker.next_of_end() == whole.next_of_end()


@given(st.lists(PIECES, max_size=12), st.sampled_from([EXACT, SPELLED]))
def test_forced_tokens_end_the_reasoning_wherever_it_is(
    pieces: list[list[int]], reasoning: Reasoning
) -> None:
    tracker = read(opened(reasoning), [token_id for piece in pieces for token_id in piece])
    forced = 0
    while tracker.inside:
        tracker.read(tracker.next_of_end())
        forced += 1
    assert forced <= len(reasoning.end[0].token_ids)


def test_end_mark_of_text_goes_on_from_the_longest_beginning_of_it() -> None:
    reasoning = Reasoning(end=[Mark("abac", list(b"abac"), exact=False)], inside=True)
    for text, following in [
        (b"", b"a"),
        (b"a", b"b"),
        (b"xab", b"a"),
        (b"aba", b"c"),
        (b"abab", b"a"),
        (b"abx", b"a"),
    ]:
        tracker = read(reasoning, text)
        assert [tracker.next_of_end()] == list(following)


def test_marks_share_no_text() -> None:
    reasoning = Reasoning(
        start=[Mark("ab", list(b"ab"), exact=False)], end=[Mark("bc", list(b"bc"), exact=False)]
    )
    assert position(read(reasoning, b"abc")) == (1, True)


def test_tokens_without_text_are_counted_in_constant_memory() -> None:
    tracker = read(opened(SPELLED), [*b"a", *[NOTHING] * 100])
    assert position(tracker) == (101, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reasoning(end=[]), "end is"),
        (lambda: Reasoning(end=EXACT.end, calls=SPELLED.start), "calls is"),
        (lambda: Reasoning(end=EXACT.end, budget=-1), "budget is"),
        (lambda: Mark("", [1], exact=True), "text is"),
        (lambda: Mark("a", [], exact=False), "token_ids is"),
        (lambda: Mark("a", [1, 2], exact=True), "token_ids is"),
    ],
)
def test_contradictory_parameters_are_refused(make, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        make()


def test_marks_of_text_need_the_bytes_of_tokens_and_tokens_that_write_them() -> None:
    EXACT.check(None)
    SPELLED.check(TOKENS)
    with pytest.raises(InvalidRequestError, match="needs a tokenizer"):
        SPELLED.check(None)
    with pytest.raises(InvalidRequestError, match="don't write it"):
        Reasoning(end=[Mark("</think>", list(b"</thank>"), exact=False)]).check(TOKENS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"<think>ab</think>c<think>d", (2, False)),
        (b" \n<think>ab", (2, True)),
        (b'{"x": "<think>ab"}', (0, False)),
        (b"<thin<think>ab", (0, False)),
    ],
)
def test_reasoning_that_comes_first_begins_nowhere_else(text: bytes, expected: tuple[int, bool]) -> None:
    first = Reasoning(start=SPELLED.start, end=SPELLED.end, first=True)
    assert position(read(first, list(text))) == expected
    inside = Reasoning(start=SPELLED.start, end=SPELLED.end, first=True, inside=True)
    assert position(read(inside, list(b"ab</think>c<think>d"))) == (2, False)
