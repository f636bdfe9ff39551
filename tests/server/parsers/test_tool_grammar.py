"""Grammars of tool calls: calls always parse, and are required where a request requires them."""

import numpy as np
import pytest
from llguidance import LLMatcher
from small_tokenizers import EOS, byte_level, vocabulary_of

from engine_server.server.parsers.tool_grammar import CallFormat, tool_grammar
from engine_server.structured.compiler import Compiler
from engine_server.structured.description import lark_grammar


def call(name: str, key: str) -> CallFormat:
    schema = {
        "type": "object",
        "properties": {key: {"type": "integer"}},
        "required": [key],
        "additionalProperties": False,
    }
    return CallFormat(f'<tool_call>{{"name": "{name}", "arguments": ', schema, "}</tool_call>")


CALLS = [call("weather", "city"), call("time", "zone")]
WEATHER = '<tool_call>{"name": "weather", "arguments": {"city": 1}}</tool_call>'
TIME = '<tool_call>{"name": "time", "arguments": {"zone": 2}}</tool_call>'
TOKENIZER = byte_level()
COMPILER = Compiler(vocabulary_of(TOKENIZER))


def accepts(grammar: LLMatcher, text: str) -> bool:
    """Return True if the text may be generated and may end there."""
    matcher = grammar.deep_copy()
    for token_id in TOKENIZER.encode(text).ids:
        if not allows(matcher, token_id):
            return False
        matcher.consume_token(token_id)
    return allows(matcher, EOS)


def allows(matcher: LLMatcher, token_id: int) -> bool:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return bool(bits[token_id])


@pytest.mark.parametrize(
    ("calls", "options", "accepted", "refused"),
    [
        (
            CALLS,
            {"choice": "auto"},
            ["", "Hello", WEATHER, f"Hello {TIME} and {WEATHER}."],
            ["<tool_call>{}</tool_call>", f"{WEATHER}<tool_call>x", WEATHER[:-9]],
        ),
        (
            CALLS,
            {"choice": "auto", "parallel": False},
            ["Hello", f"Hello {TIME}"],
            [WEATHER + TIME, f"{TIME}!"],
        ),
        (
            CALLS,
            {"choice": "required", "separator": "\n"},
            [WEATHER, f"{WEATHER}\n{TIME}"],
            ["", "Hello", f"Hello {WEATHER}", WEATHER + TIME, f"{WEATHER}!"],
        ),
        (CALLS, {"choice": "required", "parallel": False}, [WEATHER, TIME], [WEATHER + TIME]),
        (CALLS[1:], {"choice": "named"}, [TIME], ["", WEATHER, TIME + TIME]),
    ],
)
def test_answers_have_the_calls_that_the_choice_asks_for(
    calls: list[CallFormat], options: dict, accepted: list[str], refused: list[str]
) -> None:
    params = tool_grammar(calls, trigger="<tool_call>", **options)
    grammar = COMPILER.compile(lark_grammar(params, {}))
    assert [text for text in accepted if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


def test_special_tokens_in_a_format_are_single_tokens() -> None:
    special = {"<s>": 0, "</s>": 1, "<pad>": 2}
    params = tool_grammar(
        [CallFormat("<pad>f", {"type": "integer"}, "<s>")], "auto", "<pad>", starts_after=[7]
    )
    assert params.starts_after == [7]
    matcher = COMPILER.compile(lark_grammar(params, special)).deep_copy()
    for token_id in [
        *TOKENIZER.encode("then ").ids,
        2,
        *TOKENIZER.encode("f12").ids,
        0,
        *TOKENIZER.encode("!").ids,
    ]:
        assert allows(matcher, token_id)
        matcher.consume_token(token_id)
    assert allows(matcher, EOS)
