"""Random walks through the grammars of clients' schemas: what they generate is valid, as a form and as a call."""

import json
from typing import Any

import jsonschema
import pytest
from server.conversation.recorded_answers import our_layout, reading
from server.conversation.test_reader import calls_of, parse
from structured.schemas.client_schemas import ALL
from structured.walks import BYTES
from tiers import tiered

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.conversation.grammar import answer_grammar
from engine_server.server.conversation.start import StartState
from engine_server.server.generation.tool_use import ToolUse
from engine_server.structured.description import grammar_text
from engine_server.structured.schemas.relaxed import relax

# Of which a walk is taken by default: each library, and schemas that recurse, join and are large.
DEFAULT = (
    "pydantic Person",
    "pydantic Node",
    "zod 3 user",
    "zod 4 account",
    "zod 4 result",
    "filesystem.edit_file",
    "arguments",
)
FORMS = ("hermes", "qwen3_coder")
# Walks of a schema in the next tier, as a form and in each form of calls.
WALKS = 15


def check_form(schema: Any, seed: int) -> None:
    relaxed = relax(schema, "schema").schema
    text = BYTES.random_text(grammar_text(StructuredOutputsParams(json=relaxed), {}), seed)
    jsonschema.validate(json.loads(text), relaxed)


def check_call(schema: Any, form: str, seed: int) -> None:
    relaxed = relax(schema, "parameters").schema
    tool = {"type": "function", "function": {"name": "run", "parameters": schema}}
    use = ToolUse([tool], "required", parallel=False, paths=("parameters",), schemas={"parameters": relaxed})
    grammar = answer_grammar(our_layout(form), StartState("past"), use, None)
    assert grammar is not None
    text = BYTES.random_text(grammar_text(grammar.params, {}), seed)
    calls = calls_of(parse(reading(form, tools=[tool], whole=True).reader(0), text))
    assert len(calls) == 1, text
    ((name, arguments),) = calls
    assert name == "run"
    jsonschema.validate(arguments, relaxed)


@pytest.mark.parametrize("name", tiered(ALL, *DEFAULT, more=ALL))
def test_what_a_schemas_grammar_allows_is_valid_as_form_and_as_call(name: str) -> None:
    check_form(ALL[name], 0)
    for form in FORMS:
        check_call(ALL[name], form, 0)


@pytest.mark.more
@pytest.mark.parametrize("name", ALL)
def test_many_walks_are_valid(name: str) -> None:
    for seed in range(1, WALKS):
        check_form(ALL[name], seed)
        for form in FORMS:
            check_call(ALL[name], form, seed)
