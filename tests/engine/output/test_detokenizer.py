"""Incremental text: the pieces add up to the whole, and a stop string ends it across any token boundaries."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.engine.output.stop_matcher import StopAutomaton
from engine_server.requests.sampling_params import SamplingParams

TEXTS = st.text(alphabet=st.sampled_from("abc de.\n🦙é漢字STOP"), min_size=1, max_size=40)


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


def stream(
    tokenizer: Tokenizer, token_ids: list[int], params: SamplingParams
) -> tuple[list[str], str | None]:
    """Return the visible text after each token, and the stop string that was found."""
    stops = StopAutomaton(params.stop_strings) if params.stop_strings else None
    detokenizer, shown = Detokenizer(tokenizer, [], params, stops), []
    for number, token_id in enumerate(token_ids):
        stop = detokenizer.append([token_id], number == len(token_ids) - 1)
        shown.append((shown[-1] if shown else "") + detokenizer.take())
        if stop:
            return shown, stop
    return shown, None


@given(text=TEXTS)
def test_deltas_of_tokenized_text_add_up_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    shown, _ = stream(tokenizer, token_ids, SamplingParams())
    assert shown[-1] == text
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))


@given(token_ids=st.lists(st.integers(3, 49151), min_size=1, max_size=12))
def test_text_of_any_tokens_equals_the_text_that_the_tokenizer_decodes(
    tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    """The tokens may end inside a character, whose bytes must not be lost."""
    shown, _ = stream(tokenizer, token_ids, SamplingParams())
    whole = tokenizer.decode(token_ids)
    assert shown[-1].replace("\ufffd", "") == whole.replace("\ufffd", "")
    assert shown[-1].endswith("\ufffd") == whole.endswith("\ufffd")


@given(
    text=TEXTS,
    stops=st.lists(st.sampled_from(["STOP", "a", "c d", ". ", "字", "🦙é", "OP"]), min_size=1, max_size=3),
)
def test_no_text_after_a_stop_string_is_ever_shown(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    shown, found = stream(tokenizer, token_ids, SamplingParams(stop=stops))
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    assert (found is not None) == bool(places)
    if found is None:
        assert shown[-1] == text
    else:
        assert text.startswith(shown[-1] + found)
        assert not any(stop in shown[-1] for stop in stops)
    assert all(shown[-1].startswith(earlier) for earlier in shown)


def test_stop_string_is_kept_with_include_stop_str_in_output(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("one two three", add_special_tokens=False).ids
    shown, found = stream(tokenizer, token_ids, SamplingParams(stop="wo th", include_stop_str_in_output=True))
    assert (shown[-1], found) == ("one two th", "wo th")


def test_stop_strings_are_not_matched_before_min_tokens(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("a b a b a b", add_special_tokens=False).ids
    shown, found = stream(tokenizer, token_ids, SamplingParams(stop="b", min_tokens=3))
    assert (shown[-1], found) == ("a b a ", "b")
