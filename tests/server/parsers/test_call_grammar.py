"""Grammars of demanded calls, whose texts the parser reads."""

from typing import Any

import llguidance
import pytest
from server.parsers.recorded_answers import FORMATS, our_format
from server.parsers.test_answer import calls_of, parse

from engine_server.server.parsers.tool_grammar import call_grammar
from engine_server.server.parsers.tool_use import ToolUse
from engine_server.structured.description import lark_grammar

TOOL = {
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


def accepts(grammar: str, text: str) -> bool:
    """Return whether a text matches a grammar as a whole, byte by byte."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())


def demanded(name: str, tools: list[dict[str, Any]]) -> str:
    form = our_format(name).call
    assert form is not None
    params = call_grammar(form, ToolUse(tools, "required", parallel=False), None)
    assert params is not None
    return lark_grammar(params, {})


@pytest.mark.parametrize("name", DEMANDABLE)
def test_demanded_call_is_in_the_models_form_and_parses(name: str) -> None:
    form = our_format(name).call
    assert form is not None
    arguments = TAGS if form.tag else ARGUMENTS
    text = form.before + form.text.replace("NAME", "write").replace("ARGUMENTS", arguments) + form.after
    grammar = demanded(name, [TOOL])
    assert accepts(grammar, text)
    assert not accepts(grammar, text.replace("3", "three"))
    assert not accepts(grammar, f"Well. {text}")
    answer = our_format(name).answer("chatcmpl-1", "", [TOOL], whole=True)
    assert answer is not None
    assert calls_of(parse(answer.parser(0), text)) == [CALLED]
