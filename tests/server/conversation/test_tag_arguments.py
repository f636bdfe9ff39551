"""Arguments in tags: what is read has the type that the schema allows, whole and in pieces."""

from typing import Any

import pytest
from server.conversation.recorded_answers import reading
from server.conversation.test_reader import calls_of, parse

INTEGER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
DEFINITIONS = {"Level": {"enum": [1, 2]}, "Cycle": {"anyOf": [{"$ref": "#/$defs/Cycle"}, NULL]}}
CASES: list[tuple[Any, str, Any]] = [
    (TEXT, "5", "5"),
    (TEXT, '"quoted"', '"quoted"'),
    (INTEGER, "5", 5),
    (INTEGER, "5.0", 5),
    ({"anyOf": [TEXT, NULL]}, "null", None),
    ({"anyOf": [TEXT, NULL]}, "5", "5"),
    ({"type": ["string", "null"]}, "None", None),
    ({"type": "string", "nullable": True}, "null", None),
    ({"enum": ["a", None]}, "null", None),
    ({"enum": ["a", None]}, "a", "a"),
    ({"enum": [1, 2]}, "2", 2),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"const": True}, "true", True),
    ({"$ref": "#/$defs/Level"}, "1", 1),
    ({"$ref": "#/$defs/Cycle"}, "null", None),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": ["string", "null"]}]}, "1", "1"),
    ({"type": "array"}, "[1, 2e999]", [1, float("inf")]),
    ({"properties": {"a": INTEGER}}, '{"a": 1}', {"a": 1}),
    ({}, "5", "5"),
    ({"$ref": "#"}, '{"value": 1}', {"value": 1}),
    ({"$ref": "https://example.com/unknown"}, "5", "5"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_argument_has_the_type_of_its_schema(number: int) -> None:
    schema, written, expected = CASES[number]
    parameters = {"type": "object", "properties": {"value": schema}, "$defs": DEFINITIONS}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    text = f"<tool_call>\n<function=f>\n<parameter=value>\n{written}\n</parameter>\n</function>\n</tool_call>"
    answer = reading("qwen3_coder", tools=[tool])
    for pieces in ([text], list(text)):
        assert calls_of(parse(answer.reader(0), *pieces)) == [("f", {"value": expected})]


def test_undeclared_argument_has_the_type_of_additional_properties() -> None:
    parameters = {"type": "object", "additionalProperties": INTEGER}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    text = "<tool_call>\n<function=f>\n<parameter=any>\n5\n</parameter>\n</function>\n</tool_call>"
    answer = reading("qwen3_coder", tools=[tool])
    assert calls_of(parse(answer.reader(0), text)) == [("f", {"any": 5})]
