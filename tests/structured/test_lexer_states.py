"""States of the lexer, which the requests of one grammar share: no answer uses up those of the next."""

import random
from typing import Any

import pytest
from llguidance import LLMatcher
from small_tokenizers import byte_level, vocabulary_of
from structured.walks import BYTES
from tiers import tiered

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.compiler import consume
from engine_server.structured.description import grammar_text
from engine_server.structured.grammar_cache import MAX_USES, GrammarCache
from engine_server.structured.schemas.relaxed import relax

CHARACTERS = ["a", " ", "é", "一", "😀", "\\n", '\\"', "\\u001f", "."]


def bounded(lengths: list[int]) -> dict[str, Any]:
    """Return the schema of an object with strings of different lengths."""
    names = [f"p{length}" for length in lengths]
    properties = {
        name: {"type": "string", "maxLength": length} for name, length in zip(names, lengths, strict=True)
    }
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def filled(lengths: list[int], seed: int) -> list[int]:
    """Return the tokens of an object whose strings are as long as may be."""
    choose = random.Random(seed)
    parts = [f'"p{length}": "{"".join(choose.choices(CHARACTERS, k=length))}"' for length in lengths]
    return BYTES.tokenizer.encode("{" + ", ".join(parts) + "}").ids


def start(schema: Any) -> LLMatcher:
    """Return a matcher at the start of a schema's grammar, which all calls share."""
    relaxed = relax(schema, "schema").schema
    return BYTES.compiled(grammar_text(StructuredOutputsParams(json=relaxed), {})).deep_copy()


def read(schema: Any, token_ids: list[int], resumed_at: int = 0) -> LLMatcher:
    """Return a matcher after these tokens, of which some were read at once."""
    matcher = start(schema)
    consume(matcher, token_ids[:resumed_at])
    for place in range(resumed_at, len(token_ids), 8):
        matcher.compute_bitmask()
        matcher.consume_tokens(token_ids[place : place + 8])
    return matcher


# The bounds that are enforced may take most of the states; larger ones are dropped.
LENGTHS = {
    "100 strings": list(range(1, 400, 4)),
    "ten fields": [64, 128, 200, 256, 400, 512, 800, 1000, 2000, 5000],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_answers_with_full_strings_go_on_whatever_others_used(name: str) -> None:
    lengths = LENGTHS[name]
    for seed in range(3):
        token_ids = filled(lengths, seed)
        matcher = read(bounded(lengths), token_ids, resumed_at=random.Random(seed).randrange(len(token_ids)))
        assert not matcher.is_error() and matcher.is_accepting(), matcher.get_error()


def test_string_with_a_large_bound_takes_40000_characters() -> None:
    token_ids = BYTES.tokenizer.encode('{"p65536": "' + "a é 😀" * 8000 + '"}').ids
    for resumed_at in (0, 1_234, len(token_ids)):
        matcher = read(bounded([65_536]), token_ids, resumed_at)
        assert matcher.is_accepting(), matcher.get_error()


@pytest.mark.parametrize("requests", tiered([20, 200], 20, more=[200]))
def test_many_requests_of_a_schema_go_on(requests: int) -> None:
    lengths = [16, 30, 64, 100, 250, 255, 280, 1000]
    assert relax(bounded(lengths), "schema").parts == ()
    for seed in range(requests):
        token_ids = filled(lengths, seed)
        matcher = start(bounded(lengths))
        consume(matcher, token_ids)
        assert matcher.is_accepting(), (seed, matcher.get_error())


def test_bounds_are_dropped_from_the_largest_on() -> None:
    relaxed = relax(bounded(LENGTHS["ten fields"]), "schema")
    assert [part.path for part in relaxed.parts] == [
        f"schema.properties.p{length}.maxLength" for length in (1000, 2000, 5000)
    ]
    equal = {"type": "array", "items": bounded([1000]), "prefixItems": [bounded([1000])] * 50}
    assert relax(equal, "schema").parts == ()


@pytest.fixture
def cache() -> GrammarCache:
    return GrammarCache(vocabulary_of(byte_level()))


def test_grammar_that_failed_is_compiled_anew_for_the_next_request(cache: GrammarCache) -> None:
    grammar = grammar_text(StructuredOutputsParams(regex="(?s:.{0,100000})"), {})
    letters = BYTES.tokenizer.encode("a" * 20_000).ids

    failed, other = cache.get(grammar).result(60).deep_copy(), cache.get(grammar).result(60).deep_copy()
    failed.consume_tokens(letters)
    other.consume_tokens(letters[:5])
    cache.discard(grammar)
    following = cache.get(grammar).result(60).deep_copy()
    following.consume_tokens(letters[:5])

    assert failed.is_error() and other.is_error()
    assert not following.is_error()


def test_grammar_is_compiled_anew_after_many_requests(cache: GrammarCache) -> None:
    grammar = grammar_text(StructuredOutputsParams(choice=["a"]), {})
    compiled = [cache.get(grammar).result(60) for _ in range(MAX_USES + 1)]
    assert compiled[0] is compiled[MAX_USES - 1]
    assert compiled[0] is not compiled[MAX_USES]
