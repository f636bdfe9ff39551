"""Stop strings in the content of an answer alone, and those that are its marks."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.engine.output.output_processor import OutputProcessor
from engine_server.engine.output.stop_matcher import StopAutomaton
from engine_server.requests.marks import mark_character
from engine_server.requests.messages import AddRequest, RequestStep
from engine_server.requests.outputs import Output, RequestOutput
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.stop_scope import ScopedText
from engine_server.requests.submission import Submission
from engine_server.requests.token_bytes import pack
from engine_server.telemetry.stats import IterationStats

# A mark that is a token, and one of text.
END_TOKEN = "<|im_end|>"
TURN, CLOSE = mark_character(0), "</think>"


class Thoughts:
    """A scope of an answer that begins with reasoning, which each of the two marks ends or begins again."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = True

    def feed(self, text: str) -> list[ScopedText]:
        pieces: list[ScopedText] = []
        for character in text:
            self._held += character
            if self._held in (TURN, CLOSE):
                plain = END_TOKEN if self._held == TURN else None
                pieces.append(ScopedText(self._held, "mark", plain))
                self._held, self._inside = "", not self._inside
            while self._held and not CLOSE.startswith(self._held):
                pieces.append(self._piece(self._held[0]))
                self._held = self._held[1:]
        return pieces

    def end(self) -> list[ScopedText]:
        held, self._held = self._held, ""
        return [self._piece(held)] if held else []

    def _piece(self, text: str) -> ScopedText:
        return ScopedText(text, "other" if self._inside else "content")


@pytest.fixture(scope="module")
def tokenizer(byte_level: Tokenizer) -> Tokenizer:
    return byte_level


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text.replace(TURN, END_TOKEN), add_special_tokens=False).ids


def outcome(
    tokenizer: Tokenizer, text: str | Sequence[int], stop: str | list[str], **options: object
) -> tuple[str, str | None]:
    """Return the visible text, taken after each token, and the stop string that was found."""
    token_ids = encode(tokenizer, text) if isinstance(text, str) else text
    params = SamplingParams(stop=stop, mark_token_ids=[tokenizer.token_to_id(END_TOKEN)], **options)  # type: ignore[arg-type]
    detokenizer = Detokenizer(tokenizer, [], params, StopAutomaton(params.stop_strings), Thoughts())
    shown = ""
    for number, token_id in enumerate(token_ids, 1):
        stop_reason = detokenizer.append([token_id], finished=number == len(token_ids))
        shown += detokenizer.take()
        if stop_reason:
            return shown, stop_reason
    return shown, None


def test_stop_string_within_the_thoughts_is_text(tokenizer: Tokenizer) -> None:
    assert outcome(tokenizer, "one STOP two</think>three STOP four", "STOP") == (
        "one STOP two</think>three ",
        "STOP",
    )


def test_stop_string_is_not_matched_across_a_mark(tokenizer: Tokenizer) -> None:
    text = f"a ST{TURN}OP b{TURN}c ST{TURN}OP"
    assert outcome(tokenizer, text, "STOP") == (text, None)


def test_stop_string_spans_pieces_of_content(tokenizer: Tokenizer) -> None:
    assert outcome(tokenizer, f"a{TURN}b</thi</th c", "</thi</") == (f"a{TURN}b", "</thi</")


@pytest.mark.parametrize("stop", [CLOSE, "think", "</th", " </think>\n"])
def test_stop_string_that_is_a_mark_or_a_part_of_it_ends_the_answer_there(
    tokenizer: Tokenizer, stop: str
) -> None:
    assert outcome(tokenizer, "I think so.</think>Yes", stop) == ("I think so.", stop)


def test_stop_string_is_compared_with_the_own_text_of_a_marks_token(tokenizer: Tokenizer) -> None:
    assert outcome(tokenizer, f"Let me see.{TURN}Yes", END_TOKEN) == ("Let me see.", END_TOKEN)


def test_mark_is_kept_with_include_stop_str_in_output(tokenizer: Tokenizer) -> None:
    found = outcome(tokenizer, f"Hm.{TURN}Yes", END_TOKEN, include_stop_str_in_output=True)
    assert found == (f"Hm.{TURN}", END_TOKEN)


def test_white_space_as_a_stop_string_is_matched_in_content_alone(tokenizer: Tokenizer) -> None:
    assert outcome(tokenizer, "a\n\nb</think>c\n\nd", "\n\n") == ("a\n\nb</think>c", "\n\n")


@pytest.mark.parametrize("min_tokens", [1, 4, 7])
def test_stop_strings_are_not_matched_in_the_first_tokens(tokenizer: Tokenizer, min_tokens: int) -> None:
    """The scope holds back text of the first tokens, in which no stop string is matched later either."""
    text = f"x{TURN} a a a a a a"
    token_ids = encode(tokenizer, text)
    assert len(token_ids) == 8
    shown, found = outcome(tokenizer, token_ids, " a", min_tokens=min_tokens)
    assert found == " a"
    assert shown == f"x{TURN}" + " a" * max(0, min_tokens - 2)
    begun = outcome(tokenizer, f"{TURN}</th a</th", "</th", min_tokens=len(encode(tokenizer, f"{TURN}</th")))
    assert begun == (f"{TURN}</th a", "</th")


def test_text_that_a_scope_holds_back_is_matched_at_the_end(tokenizer: Tokenizer) -> None:
    assert outcome(tokenizer, f"{TURN}a</th", "</th") == (f"{TURN}a", "</th")
    assert outcome(tokenizer, f"{TURN}a</th", "b") == (f"{TURN}a</th", None)


PIECES = st.sampled_from(["a", " b", "STOP", "ST", "OP", TURN, CLOSE, "</th", "ink>", "\n", "é"])


@settings(deadline=None)
@given(
    st.lists(PIECES, min_size=1, max_size=10),
    st.lists(st.sampled_from(["STOP", "TO", "think", "a", "\n", END_TOKEN]), min_size=1, max_size=2),
    st.integers(0, 4),
    st.booleans(),
)
def test_text_after_each_token_is_a_function_of_the_tokens(
    tokenizer: Tokenizer, pieces: list[str], stop: list[str], min_tokens: int, include: bool
) -> None:
    token_ids = encode(tokenizer, "".join(pieces))
    params = SamplingParams(
        stop=stop, min_tokens=min_tokens, include_stop_str_in_output=include,
        mark_token_ids=[tokenizer.token_to_id(END_TOKEN)],
    )  # fmt: skip
    stops = StopAutomaton(stop)

    def shown(division: Sequence[int]) -> tuple[str, str | None]:
        detokenizer, text, start = Detokenizer(tokenizer, [], params, stops, Thoughts()), "", 0
        for end in division:
            found = detokenizer.append(token_ids[start:end], finished=False)
            text, start = text + detokenizer.take(), end
            if found:
                return text, found
        return text, None

    previous = ""
    for end in range(1, len(token_ids) + 1):
        whole = shown([end])
        assert shown(range(1, end + 1)) == whole
        assert whole[0].startswith(previous)
        previous = whole[0]
        if whole[1]:
            break


def completed(
    tokenizer: Tokenizer, token_ids: list[int], num_resumed: int, n: int = 1
) -> list[tuple[str, object]]:
    """Return the text and the stop reason of each completion of a request that resumes its first tokens."""
    params = SamplingParams(
        n=n, seed=1, stop="STOP", max_tokens=100, mark_token_ids=[tokenizer.token_to_id(END_TOKEN)],
    )  # fmt: skip
    known = [5, *token_ids[:num_resumed]]
    message = AddRequest([], pack(known), params, 100, 0.0, num_resumed=num_resumed)
    processor = OutputProcessor(tokenizer, [])
    submission = Submission("r", {"prompt_token_ids": [5]}, params, stop_scope=Thoughts)
    prepared = processor.prepare(submission, message, known, None)
    outputs: list[Output] = []
    if processor.add(prepared.state):
        for token_id in token_ids[num_resumed:]:
            steps = [RequestStep(core_id, [token_id]) for core_id in prepared.message.request_ids]
            outputs += processor.process(steps, IterationStats())[0]
    else:
        outputs += processor.process([], IterationStats())[0]
    assert isinstance(outputs[-1], RequestOutput)
    return [(one.text, one.stop_reason) for one in outputs[-1].outputs]


def test_request_resumed_at_any_token_ends_at_the_same_stop_string(tokenizer: Tokenizer) -> None:
    token_ids = encode(tokenizer, "a STOP b</think>c STOP d")
    expected = [("a STOP b</think>c ", "STOP")]
    for num_resumed in range(len(token_ids) + 1):
        assert completed(tokenizer, token_ids, num_resumed) == expected


def test_each_completion_has_a_scope_of_its_own(tokenizer: Tokenizer) -> None:
    token_ids = encode(tokenizer, f"a STOP{TURN}c STOP d")
    assert completed(tokenizer, token_ids, 0, n=3) == [(f"a STOP{TURN}c ", "STOP")] * 3
