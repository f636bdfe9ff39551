"""Whatever a grammar of an answer lets a model write is read as what was demanded."""

import json
from typing import Any

import jsonschema
import pytest
from server.conversation.derivation.chat_templates import CASES
from server.conversation.recorded_answers import FORMATS, our_layout, reading
from server.conversation.test_grammar import walker
from server.conversation.test_reader import calls_of, parse, text_of
from tiers import tiered

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.conversation.grammar import answer_grammar
from engine_server.server.conversation.start import StartState
from engine_server.server.generation.events import Reasoning, Text
from engine_server.server.generation.tool_use import ToolUse
from engine_server.structured.description import grammar_text

DERIVED = [name for name, case in CASES.items() if case.written is None]
DEMANDABLE = [*(name for name, found in FORMATS.items() if "call" in found), *DERIVED]
DEFAULT = ("hermes", "qwen3_coder", "gemma4", "lfm2", "tags with types", "numbered objects in wrapped turns")
FORM = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}, "y": {"enum": ["a", "b", 3]}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "lines": {"type": "integer", "minimum": 0, "maximum": 99},
                    "mode": {"enum": ["a", "w"]},
                    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
                },
                "required": ["text", "lines"],
                "additionalProperties": False,
            },
        }
    },
    {
        "function": {
            "name": "now",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        }
    },
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def check(name: str, tokens: bool, use: ToolUse | None, form: bool, state: StartState, seed: int) -> None:
    layout = our_layout(name, tokens)
    params = StructuredOutputsParams(json=FORM) if form else None
    grammar = answer_grammar(layout, state, use, params)
    assert grammar is not None
    text = walker(name, tokens).random_text(grammar_text(grammar.params, {}), seed)
    calls = use is not None
    marked = layout.regions(calls).marks.marked(text)
    options: dict[str, Any] = {
        "whole": True,
        "tokens": tokens,
        "strips_beginning": grammar.space_first,
        "content_is_last": grammar.demands,
    }
    parts = parse(reading(name, tools=TOOLS if calls else None, **options).reader(0), marked)

    written = [part for part in parts if not isinstance(part, Reasoning)]
    if written and isinstance(written[0], Text):
        assert form, text
        jsonschema.validate(json.loads(text_of(parts, Text)), FORM)
        return
    assert calls, text
    found = calls_of(parts)
    assert found, text
    for called, arguments in found:
        jsonschema.validate(arguments, SCHEMAS[str(called)])
    assert text_of(parts, Text) == ""


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", tiered(DEMANDABLE, *DEFAULT, more=DEMANDABLE))
@pytest.mark.parametrize("state", ["past", "undecided"])
@pytest.mark.parametrize(
    ("use", "form"),
    [(ToolUse(TOOLS, "required"), False), (ToolUse(TOOLS), True), (None, True)],
    ids=["calls", "calls or form", "form"],
)
def test_what_a_grammar_allows_is_read_as_what_is_demanded(
    use: ToolUse | None, form: bool, state: str, name: str, tokens: bool
) -> None:
    if our_layout(name).channels and not tokens:
        return  # every tokenizer for it has tokens for the marks of headers
    for seed in range(8):
        start = StartState(state)  # type: ignore[arg-type]
        check(name, tokens, use and replaced(use, name, form), form, start, seed)


def replaced(use: ToolUse, name: str, form: bool) -> ToolUse:
    """Return a use whose tools are strict where a call isn't demanded."""
    if not form:
        return use
    strict = [{"function": {**tool["function"], "strict": True}} for tool in TOOLS]
    return ToolUse(strict)
