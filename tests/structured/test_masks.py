"""Masks of grammars: every text that they allow is valid, with tokenizers of every kind."""

import random
import re
import time
from concurrent.futures import Future

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from small_tokenizers import EOS, KINDS, vocabulary_of
from tokenizers import Tokenizer

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.compiler import Compiler
from engine_server.structured.description import grammar_text
from engine_server.structured.errors import GrammarError
from engine_server.structured.matcher import Matcher

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["blue", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOKENIZERS = {name: make() for name, make in KINDS.items()}
COMPILERS = {name: Compiler(vocabulary_of(tokenizer)) for name, tokenizer in TOKENIZERS.items()}


def allowed(position: LLMatcher) -> list[int]:
    bits = np.frombuffer(position.compute_bitmask(), np.uint8)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()


def matcher(kind: str, params: StructuredOutputsParams) -> Matcher:
    compiled: Future[LLMatcher] = Future()
    compiled.set_result(COMPILERS[kind].compile(grammar_text(params, {})))
    return Matcher(compiled, params.starts_after, [EOS], num_prompt=1)


def anchor(tokenizer: Tokenizer) -> int:
    """Return a token after which a token's text doesn't depend on its place."""
    return tokenizer.token_to_id("r")


def random_text(kind: str, params: StructuredOutputsParams, seed: int) -> str:
    """Return the text of random tokens of those that the masks allow."""
    tokenizer, choose = TOKENIZERS[kind], random.Random(seed)
    token_ids = [anchor(tokenizer)]
    own = matcher(kind, params)
    while EOS not in token_ids:
        own.read(token_ids, len(token_ids))
        assert own.error is None and own.position is not None
        token_ids.append(choose.choice(allowed(own.position)))
    text = tokenizer.decode(token_ids[:-1], skip_special_tokens=False)
    assert text.startswith("r")
    return text[1:]


@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 10_000))
def test_random_tokens_under_a_schema_are_json_of_the_schema(kind: str, seed: int) -> None:
    text = random_text(kind, StructuredOutputsParams(json=SCHEMA), seed)
    jsonschema.validate(msgspec.json.decode(text), SCHEMA)


@given(
    kind=st.sampled_from(list(KINDS)),
    seed=st.integers(0, 10_000),
    pattern=st.sampled_from(
        [r" ?[0-9]{1,3}(-[a-z]{2}){0,2}", r" ?(river|the|r[iv]*e)", r" ?[^a-z]{2,6}", r" ?ö?x|."]
    ),
)
def test_random_tokens_under_a_regex_match_it(kind: str, seed: int, pattern: str) -> None:
    assert re.fullmatch(pattern, random_text(kind, StructuredOutputsParams(regex=pattern), seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_of_a_choice_can_be_generated(kind: str) -> None:
    choices = ["river", " the 42", "river7", 'a"b']
    found = {random_text(kind, StructuredOutputsParams(choice=choices), seed) for seed in range(200)}
    assert found <= set(choices)
    expected = set(choices)
    if kind == "WordPiece":  # a word starts with a space, and quotation marks are words
        expected = {text for text in choices if text.isalnum()} | {" the 42"}
    assert found >= expected


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_tokens_of_a_valid_text_are_allowed_one_after_the_other(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = '{"name": "Zoë", "age": 31, "tags": ["blue", "green"]}'
    token_ids = [
        anchor(tokenizer),
        *tokenizer.encode(text.replace(" ", "▁") if kind == "byte fallback" else text).ids,
    ]
    own = matcher(kind, StructuredOutputsParams(json=SCHEMA))
    for end in range(1, len(token_ids)):
        own.read(token_ids, end)
        assert own.position is not None and token_ids[end] in allowed(own.position)
    own.read(token_ids, len(token_ids))
    assert own.position is not None and allowed(own.position) == [EOS]


def test_special_tokens_and_padding_are_never_part_of_a_text() -> None:
    own = matcher("byte level", StructuredOutputsParams(regex=r"(.|\n)*"))
    tokenizer = TOKENIZERS["byte level"]
    own.read([5], 1)
    assert own.position is not None
    found = set(allowed(own.position))
    assert tokenizer.token_to_id("<think>") not in found and EOS in found
    assert tokenizer.token_to_id("<s>") not in found
    assert max(found) < tokenizer.get_vocab_size()


def test_grammar_starts_after_the_tokens_that_end_the_reasoning() -> None:
    own = matcher("byte level", StructuredOutputsParams(choice=["the"], starts_after=[7, 8]))
    token_ids = [7, 8, 7, 7, 8]  # the first is the prompt, which doesn't count
    for end in range(1, 5):
        own.read(token_ids, end)
        assert own.position is None
    own.read(token_ids, 5)
    assert own.position is not None
    texts = {TOKENIZERS["byte level"].decode([token]) for token in allowed(own.position)}
    assert texts == {"t", "th", "the"} & texts and "t" in texts


def test_token_that_the_grammar_excludes_is_an_error_and_other_copies_continue() -> None:
    params = StructuredOutputsParams(regex="[0-9]+")
    first, second = matcher("byte level", params), matcher("byte level", params)
    letter = TOKENIZERS["byte level"].token_to_id("x")
    first.read([5, letter], 2)
    second.read([5], 1)
    assert first.error is not None and first.position is None
    assert second.error is None and second.position is not None


def test_move_that_takes_long_by_chance_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 5.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(seconds, 5.0))
    own = matcher("byte level", StructuredOutputsParams(regex="a*"))
    token_ids = [5] + [TOKENIZERS["byte level"].token_to_id("a")] * 3
    for end in range(1, len(token_ids) + 1):
        own.read(token_ids, end)
    assert own.error is None and own.position is not None


def test_ambiguous_grammar_becomes_an_error_instead_of_ever_slower() -> None:
    own = matcher("byte level", StructuredOutputsParams(grammar='start: e\ne: e e e e | e e e | e e | "a"'))
    token_ids = [5] + [TOKENIZERS["byte level"].token_to_id("a")] * 2000
    for end in range(1, len(token_ids)):
        own.read(token_ids, end)
        if own.error is not None:
            break
    assert (own.error is not None and "ambiguous" in own.error) or "items" in str(own.error)


INTEGER = {"type": "integer"}
CLOSED_PATTERNS: dict[str, dict[str, object]] = {
    "of a listed name": {"properties": {"a": INTEGER}, "patternProperties": {"^a$": INTEGER}},
    "of a required name": {"patternProperties": {"^a$": INTEGER}},
    "of several names": {"properties": {"a": INTEGER, "é": False}, "patternProperties": {"^[aé]$": INTEGER}},
    "with a rule of its own": {"properties": {"a": {}}, "patternProperties": {"^a$": INTEGER}},
}


@pytest.mark.parametrize("name", CLOSED_PATTERNS)
def test_no_comma_follows_the_last_property_where_patterns_allow_no_more_names(name: str) -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": False, **CLOSED_PATTERNS[name]}
    tokenizer = TOKENIZERS["byte level"]

    def next_characters(text: str) -> set[str]:
        own = matcher("byte level", StructuredOutputsParams(json=schema, disable_any_whitespace=True))
        own.read([anchor(tokenizer), *map(tokenizer.token_to_id, text)], 1 + len(text))
        assert own.position is not None
        return {tokenizer.decode([token_id]) for token_id in allowed(own.position)} & set('",}1')

    assert next_characters('{"a":') == {"1"}
    assert next_characters('{"a":1') == {"1", "}"}


def test_pattern_that_allows_more_names_is_kept() -> None:
    schema = {**SCHEMA, "patternProperties": {"^(name|x_[a-z]{2})$": INTEGER, "^age$": {"minimum": 50}}}
    schema["properties"] = {"age": INTEGER, "name": {}}
    names = set()
    for seed in range(100):
        value = msgspec.json.decode(random_text("byte level", StructuredOutputsParams(json=schema), seed))
        jsonschema.validate(value, schema)
        assert value["age"] >= 50
        names |= value.keys()
    assert any(name.startswith("x_") for name in names)


def test_pattern_of_names_that_a_joined_schema_declares_is_refused() -> None:
    closed = {"patternProperties": {"^a$": INTEGER}, "additionalProperties": False}
    schema = {"type": "object", "allOf": [{"properties": {"a": INTEGER}}, closed]}
    with pytest.raises(GrammarError, match=r"'\^a\$' matches only names .* declare them in this object"):
        grammar_text(StructuredOutputsParams(json=schema), {})
