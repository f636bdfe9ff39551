"""Decoding token by token, with byte-level, byte-fallback and WordPiece tokenizers."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.engine.output.stop_matcher import StopAutomaton
from engine_server.engine.output.token_decoder import MAX_PENDING, TokenDecoder
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.marks import MAX_MARKS, mark_character
from engine_server.requests.sampling_params import SamplingParams

UNFINISHED = "\ufffd"
INVALID_LEAD_BYTE = 0xE4 + 1
per_tokenizer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def decode(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    decoder = TokenDecoder(tokenizer, prompt, skip_special_tokens=True)
    return "".join(decoder.decode(token_id) for token_id in output) + decoder.flush()


def test_text_continues_after_an_invalid_byte_of_a_byte_fallback_tokenizer(byte_fallback: Tokenizer) -> None:
    letter = byte_fallback.token_to_id("a")
    assert decode(byte_fallback, [], [ord("a") + 1, INVALID_LEAD_BYTE, letter]) == f"a{UNFINISHED}a"


def test_spaces_are_kept_after_an_invalid_byte(byte_fallback: Tokenizer) -> None:
    word = byte_fallback.token_to_id("▁ab")
    output = [ord("a") + 1, INVALID_LEAD_BYTE, word, word]
    assert decode(byte_fallback, [], output) == f"a{UNFINISHED} ab ab"


@per_tokenizer
@given(data=st.data())
def test_every_division_into_deltas_gives_the_same_text(
    any_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    tokens = st.integers(0, any_tokenizer.get_vocab_size() - 1)
    output = data.draw(st.lists(tokens, min_size=1, max_size=16))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(output)))) | {len(output)})
    params = SamplingParams()

    def text(ends: Sequence[int]) -> str:
        detokenizer, start, deltas = Detokenizer(any_tokenizer, [], params, None), 0, []
        for end in ends:
            detokenizer.append(output[start:end], finished=end == len(output))
            deltas.append(detokenizer.take())
            start = end
        return "".join(deltas)

    whole = text([len(output)])
    assert text(cuts) == whole
    assert text(range(1, len(output) + 1)) == whole
    if UNFINISHED not in (decoded := any_tokenizer.decode(output)):
        assert whole == decoded


@per_tokenizer
@given(text=st.text(alphabet="ab é漢🦙字", min_size=1, max_size=20), data=st.data())
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_prompt_and_output_add_up_to_the_whole_text_at_any_end_of_the_prompt(
    request: pytest.FixtureRequest, name: str, text: str, data: st.DataObject
) -> None:
    """A character that the prompt begins and the output ends belongs to the output."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    token_ids = tokenizer.encode(text.strip() or "a", add_special_tokens=False).ids
    end = data.draw(st.integers(0, len(token_ids) - 1))
    prompt_text = tokenizer.decode(token_ids[:end])
    if name == "byte_fallback":  # invalid bytes invalidate the valid ones before them, so decode without them
        for tail in range(4):
            prompt_text = tokenizer.decode(token_ids[: max(0, end - tail)])
            if not prompt_text.endswith(UNFINISHED):
                break
    output = decode(tokenizer, token_ids[:end], token_ids[end:])
    assert prompt_text.rstrip(UNFINISHED) + output == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_prompt_that_ends_inside_a_character_is_not_repeated_in_the_output(
    request: pytest.FixtureRequest, name: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    prompt = tokenizer.encode("ab 🦙", add_special_tokens=False).ids[:-1]
    letter = tokenizer.encode("b", add_special_tokens=False).ids[-1:]
    assert decode(tokenizer, prompt, letter).strip() == "b"


def test_stop_strings_do_not_match_the_prompt(byte_level: Tokenizer) -> None:
    prompt = byte_level.encode("ab 🦙", add_special_tokens=False).ids[:-1]
    params = SamplingParams(stop=["ab", UNFINISHED])
    detokenizer = Detokenizer(byte_level, prompt, params, StopAutomaton(params.stop_strings))
    output = byte_level.encode("cd", add_special_tokens=False).ids
    assert detokenizer.append(output, finished=True) is None
    assert detokenizer.take() == "cd"


def test_undecodable_tokens_are_decoded_a_bounded_number_of_times(byte_level: Tokenizer) -> None:
    (continuation_byte,) = (
        token_id for name, token_id in byte_level.get_vocab().items() if name == "Ģ"
    )  # 0x80
    decoder = TokenDecoder(byte_level, [], skip_special_tokens=True)
    for _ in range(1000):
        decoder.decode(continuation_byte)
        assert decoder.num_pending <= MAX_PENDING


def test_marks_are_shown_as_characters_whether_their_tokens_are_special_or_not(byte_level: Tokenizer) -> None:
    start, end = (byte_level.token_to_id(name) for name in ("<|im_start|>", "<|im_end|>"))
    hello, world = byte_level.encode("Hello world").ids
    decoder = TokenDecoder(byte_level, [], skip_special_tokens=True, mark_token_ids=[hello, start])
    token_ids = [end, hello, world, start, world, end]
    text = "".join(map(decoder.decode, token_ids)) + decoder.flush()
    assert text == "\ud800 world\ud801 world"


def test_other_special_tokens_have_text_beside_marks_if_they_are_not_skipped(byte_level: Tokenizer) -> None:
    start, end = (byte_level.token_to_id(name) for name in ("<|im_start|>", "<|im_end|>"))
    decoder = TokenDecoder(byte_level, [], skip_special_tokens=False, mark_token_ids=[start])
    assert "".join(map(decoder.decode, [start, end])) == f"{mark_character(0)}<|im_end|>"


@per_tokenizer
@given(data=st.data())
def test_marks_stay_at_the_places_of_their_tokens_however_the_output_is_divided(
    any_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    mark = any_tokenizer.get_vocab_size() - 1
    pieces = data.draw(st.lists(st.sampled_from([["é"], ["ab"], [None]]), min_size=1, max_size=8))
    token_ids: list[int] = []
    for (text,) in pieces:
        token_ids += [mark] if text is None else any_tokenizer.encode(text, add_special_tokens=False).ids
    params = SamplingParams(mark_token_ids=[mark])
    detokenizer, deltas = Detokenizer(any_tokenizer, [], params, None), []
    for number, token_id in enumerate(token_ids, 1):
        detokenizer.append([token_id], finished=number == len(token_ids))
        deltas.append(detokenizer.take())
    text = "".join(deltas)
    assert text.count(mark_character(0)) == token_ids.count(mark)
    for number in range(1, len(token_ids)):
        resumed = Detokenizer(any_tokenizer, [], params, None)
        resumed.append(token_ids[:number], finished=False)
        assert resumed.take() == "".join(deltas[:number])


def test_there_is_a_character_for_each_of_2048_marks() -> None:
    characters = {mark_character(index) for index in range(MAX_MARKS)}
    assert len(characters) == MAX_MARKS == 2048
    assert all(0xD800 <= ord(one) <= 0xDFFF for one in characters)
    with pytest.raises(ValueError, match="no mark 2048"):
        mark_character(MAX_MARKS)
    with pytest.raises(InvalidRequestError, match="at most 2048 tokens"):
        SamplingParams(mark_token_ids=list(range(MAX_MARKS + 1)))
