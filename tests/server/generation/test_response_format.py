"""Request fields that constrain an answer, as the engine's parameters."""

import json
from typing import Any

import pytest

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.generation.response_format import requested_grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "n", "strict": True, "schema": SCHEMA}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            {"json": SCHEMA},
        ),
        ({"response_format": TAG}, {"structural_tag": json.dumps(TAG, separators=(",", ":"))}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"json_object": True, "disable_any_whitespace": True},
        ),
        (
            {"structured_outputs": {"structural_tag": TAG}},
            {"structural_tag": json.dumps(TAG, separators=(",", ":"))},
        ),
        ({"guided_json": SCHEMA, "response_format": {"type": "text"}}, {"json": SCHEMA}),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
            {"json": SCHEMA, "whitespace_pattern": " ?"},
        ),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_field_becomes_parameters(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    requested = requested_grammar(fields)
    assert requested is not None
    assert requested.params == StructuredOutputsParams(**expected)
    assert requested.field in fields


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_answer_without_a_format_has_no_grammar(fields: dict[str, Any]) -> None:
    assert requested_grammar(fields) is None


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"response_format": "json"}, "response_format", "json_schema"),
        ({"response_format": {"type": "x" * 1000}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema",
            "schema",
        ),
        ({"structured_outputs": []}, "structured_outputs", "object"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "jsn"),
        ({"structured_outputs": {"regex": "a", "starts_after": [1]}}, "structured_outputs", "starts_after"),
        ({"guided_choice": [1]}, "guided_choice", "choice is 1"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex", "one format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "one format"),
    ],
)  # fmt: skip
def test_wrong_field_is_refused_by_its_name(fields: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        requested_grammar(fields)
    assert raised.value.parameter == parameter
    assert len(str(raised.value)) < 500
