"""Grammars of tool calls: calls always parse, and are required where a request requires them."""

from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from server.parsers.recorded_answers import FORMATS, our_format
from server.parsers.test_template_parser import calls_of, parse
from small_tokenizers import EOS, byte_level, vocabulary_of

from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.parsers.tool_grammar import CallForm, call_grammar
from engine_server.structured.compiler import Compiler
from engine_server.structured.description import grammar_text


def strict_tool(name: str, key: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": "integer"}},
        "required": [key],
        "additionalProperties": False,
    }
    return {"function": {"name": name, "parameters": schema, "strict": True}}


TOOLS = [strict_tool("weather", "city"), strict_tool("time", "zone")]
FORM = CallForm('<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>', separator="\n")
# With it a call begins.
START = '<tool_call>{"name": "'
WEATHER = '<tool_call>{"name": "weather", "arguments": {"city": 1}}</tool_call>'
TIME = '<tool_call>{"name": "time", "arguments": {"zone": 2}}</tool_call>'
TOKENIZER = byte_level()
COMPILER = Compiler(vocabulary_of(TOKENIZER))

WRITE = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "lines": {"type": "integer"},
                "mode": {"enum": ["a", "w"]},
            },
            "required": ["text", "lines", "mode"],
        },
    },
}
ARGUMENTS = '{"text": "Köln\\n<b>", "lines": 3, "mode": "w"}'
VALUES = {"text": "Köln\n<b>", "lines": "3", "mode": "w"}
TAGS = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in VALUES.items())
CALLED = ("write", {"text": "Köln\n<b>", "lines": 3, "mode": "w"})
DEMANDABLE = [name for name, found in FORMATS.items() if "call" in found]


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


def matches(grammar: str, text: str) -> bool:
    """Return True if a text matches a grammar as a whole, byte by byte."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())


def demanded(name: str, tools: list[dict[str, Any]]) -> str:
    form = our_format(name).call
    assert form is not None
    params = call_grammar(form, ToolUse(tools, "required", parallel=False), None)
    assert params is not None
    return grammar_text(params, {})


@pytest.mark.parametrize(
    ("use", "accepted", "refused"),
    [
        (
            ToolUse(TOOLS, "auto"),
            ["", "Hello", WEATHER, f"Hello {TIME} and {WEATHER}."],
            [WEATHER.replace("weather", "rain"), f"{WEATHER}{START}x", f"{START}x", WEATHER[:-9]],
        ),
        (
            ToolUse(TOOLS, "auto", parallel=False),
            ["Hello", f"Hello {TIME}"],
            [WEATHER + TIME, f"{TIME}!"],
        ),
        (
            ToolUse(TOOLS, "required"),
            [WEATHER, f"{WEATHER}\n{TIME}"],
            ["", "Hello", f"Hello {WEATHER}", WEATHER + TIME, f"{WEATHER}!"],
        ),
        (
            ToolUse(TOOLS, "required", parallel=False),
            [WEATHER, TIME],
            [WEATHER + TIME, f"{WEATHER}\n{TIME}"],
        ),
        (
            ToolUse(TOOLS, "required", name="time"),
            [TIME],
            ["", WEATHER, TIME + TIME, f"{TIME}\n{TIME}"],
        ),
    ],
)
def test_answers_have_the_calls_that_the_choice_asks_for(
    use: ToolUse, accepted: list[str], refused: list[str]
) -> None:
    params = call_grammar(FORM, use, None)
    assert params is not None
    grammar = COMPILER.compile(grammar_text(params, {}))
    assert [text for text in accepted if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


def test_special_tokens_in_a_format_are_single_tokens() -> None:
    special = {"<s>": 0, "</s>": 1, "<pad>": 2}
    tool = {"function": {"name": "f", "parameters": {"type": "integer"}, "strict": True}}
    params = call_grammar(CallForm("<pad>NAMEARGUMENTS<s>"), ToolUse([tool]), [7])
    assert params is not None
    assert params.starts_after == [7]
    matcher = COMPILER.compile(grammar_text(params, special)).deep_copy()
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


@pytest.mark.parametrize("name", DEMANDABLE)
def test_demanded_call_is_in_the_models_form_and_parses(name: str) -> None:
    form = our_format(name).call
    assert form is not None
    arguments = TAGS if form.tag else ARGUMENTS
    text = form.before + form.text.replace("NAME", "write").replace("ARGUMENTS", arguments) + form.after
    grammar = demanded(name, [WRITE])
    assert matches(grammar, text)
    assert not matches(grammar, text.replace("3", "three"))
    assert not matches(grammar, f"Well. {text}")
    answer = our_format(name).answer("chatcmpl-1", "", [WRITE], whole=True)
    assert answer is not None
    assert calls_of(parse(answer.parser(0), text)) == [CALLED]
