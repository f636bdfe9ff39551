"""Keywords of schemas: what is enforced, left out in silence, left out and named, and refused."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structured.walks import BYTES

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.description import grammar_text
from engine_server.structured.errors import GrammarError
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.keywords import KEYWORDS, Treatment
from engine_server.structured.schemas.patterns import read_pattern
from engine_server.structured.schemas.relaxed import relax


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def accepts(schema: Any, value: str) -> bool:
    """Return True if a grammar of the schema has a text of JSON."""
    matcher = BYTES.compiled(grammar_text(StructuredOutputsParams(json=schema), {})).deep_copy()
    token_ids = BYTES.tokenizer.encode(value).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


# A schema, a value that it allows and one that it doesn't.
DEFINITIONS = {"$defs": {"a/b": {"type": "integer"}, "n": {"$anchor": "name", "maximum": 3}}}
ENFORCED: dict[str, tuple[dict[str, Any], str, str]] = {
    "type": ({"type": ["string", "null"]}, "null", "1"),
    "nullable": ({"type": "integer", "nullable": True}, "null", '""'),
    "nullable enum": ({"type": "string", "enum": ["a"], "nullable": True}, "null", '"b"'),
    "enum": ({"enum": [1, None, "a"]}, "null", '"b"'),
    "enum of another type": ({"type": "string", "enum": ["a", 1]}, '"a"', "1"),
    "const": ({"const": {"a": [1]}}, '{"a": [1]}', '{"a": [2]}'),
    "pattern": (text(pattern="^[a-c]+$|1$"), '"x1"', '"x"'),
    "maxLength": (text(maxLength=3), '"abc"', '"abcd"'),
    "minLength": (text(minLength=2.0), '"ab"', '"a"'),
    "format": (text(format="date"), '"2024-02-29"', '"today"'),
    "minimum": ({"type": "integer", "minimum": 3}, "3", "2"),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, "4", "3"),
    "draft 4's exclusiveMinimum": ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "15", "12"),
    "items": ({"type": "array", "items": {"type": "integer"}}, "[1]", "[true]"),
    "draft 7's items": ({"type": "array", "items": [{"const": 1}], "additionalItems": False}, "[1]", "[1, 2]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, "[1]", "[2]"),
    "maxItems": ({"type": "array", "maxItems": 1}, "[1]", "[1, 2]"),
    "required": ({"type": "object", "required": ["a"]}, '{"a": 1}', "{}"),
    "additionalProperties": ({"type": "object", "additionalProperties": {"type": "null"}}, '{"a": null}', '{"a": 1}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, '{"x": null}', '{"x": 1}'),
    "minProperties": ({"type": "object", "minProperties": 1}, '{"a": 1}', "{}"),
    "property that is forbidden": ({"type": "object", "properties": {"a": {"not": {}}}}, '{"b": 1}', '{"a": 1}'),
    "anyOf": ({"anyOf": [{"not": {}}, {"type": "null"}]}, "null", "1"),
    "oneOf by type": ({"oneOf": [{"type": "null"}, text()]}, "null", "1"),
    "oneOf by a property": (
        {"oneOf": [object_of(k={"const": "a"}), object_of(k={"enum": ["b", "c"]})]}, '{"k": "c"}', '{"k": "d"}'
    ),
    "allOf": ({"allOf": [text(minLength=1), {"maxLength": 2}]}, '"ab"', '"abc"'),
    "$ref with a sibling": ({"$ref": "#/$defs/a~1b", "minimum": 3, **DEFINITIONS}, "3", "2"),
    "$ref to an anchor": ({"type": "integer", "$ref": "#name", **DEFINITIONS}, "3", "4"),
    "$ref to the root": ({"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, "[[]]", "[1]"),
    "$ref by the root's id": ({"$id": "a:b", "$ref": "a:b#/$defs/a~1b", **DEFINITIONS}, "3", '""'),
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_keyword_is_enforced_and_not_named(name: str) -> None:
    schema, allowed, refused = ENFORCED[name]
    relaxed = relax(schema, "schema")
    assert relaxed.parts == ()
    assert accepts(relaxed.schema, allowed)
    assert not accepts(relaxed.schema, refused)
    jsonschema.Draft202012Validator.check_schema(relaxed.schema)


SILENT: list[dict[str, Any]] = [
    text(format="password"),
    text(format="uri-reference", contentEncoding="base64", writeOnly=True, deprecated=True),
    {"type": "integer", "format": "int64", "example": 1, "x-order": 2, "x-guidance": {"lenient": True}},
    {"type": "array", "uniqueItems": False},
    {"type": "object", "propertyNames": {"type": "string"}, "unevaluatedProperties": True, "title": "T"},
    {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
    {"type": "string", "enum": None, "default": None, "description": None},
    {"$dynamicAnchor": "x", "type": "null", "then": {"type": "string"}},
    {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 1},
]


@pytest.mark.parametrize("number", range(len(SILENT)))
def test_annotation_is_left_out_in_silence(number: int) -> None:
    relaxed = relax(SILENT[number], "schema")
    assert relaxed.parts == ()
    assert BYTES.compiled(grammar_text(StructuredOutputsParams(json=relaxed.schema), {}))


RELAXED: dict[str, tuple[dict[str, Any], str, str]] = {
    "look-ahead": (text(pattern="^(?!a)b"), "pattern", "look-around"),
    "look-behind": (text(pattern="(?<=a)b"), "pattern", "look-around"),
    "word boundary": (text(pattern="\\bx"), "pattern", "word boundary"),
    "back-reference": (text(pattern="(a)\\1"), "pattern", "back-reference"),
    "anchor within": (text(pattern="(^a|b)c"), "pattern", "anchor"),
    "large count": (text(pattern="^([a-z]{1,1000}){1,1000}$"), "pattern", "count too large"),
    "maxLength": (text(maxLength=200_000_000), "maxLength", "bound too large"),
    "minLength": (text(minLength=10**12), "minLength", "bound too large"),
    "length of a URL": (text(format="uri", maxLength=2083), "maxLength", "bound too large"),
    "maximum": ({"type": "number", "maximum": 1e300}, "maximum", "bound too large"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems", "uniqueItems"),
    "contains": ({"type": "array", "contains": {}}, "contains", "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames", "propertyNames"),
    "minProperties": (
        {"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties", "minProperties"
    ),
    "pattern of names": (
        {"type": "object", "patternProperties": {"(?=a)": {}}, "additionalProperties": False},
        "patternProperties",
        "look-around",
    ),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "branches may overlap"),
    **{
        key: ({"type": "object", key: {"a": {"b": 1}}}, key, key)
        for key in ("not", "if", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RELAXED)
def test_keyword_that_no_grammar_enforces_is_named_or_refused_where_that_is_asked(name: str) -> None:
    schema, keyword, reason = RELAXED[name]
    relaxed = relax(schema, "tools.0")
    assert [tuple(part) for part in relaxed.parts] == [(f"tools.0.{keyword}", reason)]
    assert BYTES.compiled(grammar_text(StructuredOutputsParams(json=relaxed.schema), {}))
    with pytest.raises(SchemaError) as refused:
        relax(schema, "tools.0", strict=True)
    assert refused.value.path == f"tools.0.{keyword}"


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no schema": ({"properties": {"a": 1}}, "s.properties.a", "a schema is an object or a boolean"),
    "unknown type": ({"items": {"type": "any"}}, "s.items.type", "'any' is no type"),
    "negative bound": (text(maxLength=-1), "s.maxLength", "-1 is not a whole number"),
    "bound that is no number": ({"minimum": "1"}, "s.minimum", "'1' is not a number"),
    "broken pattern": (text(pattern="(a"), "s.pattern", "unclosed group"),
    "remote reference": ({"items": {"$ref": "http://a/b"}}, "s.items.$ref", "is in another document"),
    "missing target": ({"$ref": "#/$defs/x"}, "s.$ref", "does not exist"),
    "reference to itself": ({"$ref": "#"}, "s", "no value matches the schema"),
    "cycle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "s", "no value"
    ),
    "no values": ({"enum": []}, "s", "no value"),
    "values of another type": (object_of(a={"type": "integer", "enum": ["b"]}), "s.properties.a", "no value"),
    "bounds in disorder": ({"type": "array", "minItems": 2, "maxItems": 1}, "s", "no value"),
    "types that exclude each other": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "s", "no value"),
    "required and forbidden": (
        {"type": "object", "required": ["a"], "additionalProperties": False}, "s", "no value"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_schema_of_no_use_is_refused_with_its_path(name: str) -> None:
    schema, path, message = REFUSED[name]
    with pytest.raises(SchemaError, match=message) as refused:
        relax(schema, "s")
    assert refused.value.path == path


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_schema_of_64_levels_is_enforced_and_a_deeper_one_is_refused() -> None:
    relaxed = relax(nested(64), "s")
    assert relaxed.parts == () and accepts(relaxed.schema, "[" * 64 + "null" + "]" * 64)
    with pytest.raises(SchemaError, match="nested deeper than 64 levels"):
        relax(nested(65), "s")


def test_every_keyword_that_a_grammar_can_not_enforce_is_tested() -> None:
    relaxed = {name for name, keyword in KEYWORDS.items() if keyword.treatment is Treatment.RELAXED}
    tested = {key for schema, _, _ in RELAXED.values() for key in schema}
    assert relaxed - tested <= {"dependentRequired", "unevaluatedItems", "$recursiveRef"}


PIECES = st.sampled_from(
    ["a", "\\d", "[a-c]", "[^x]", ".", "(?:b|c)", "(x)", "\\.", "\\p{L}", "\\u0041", "é", "{2,3}", "+", "?", "*", "|",
     "^", "$", "(?=a)", "\\b", "[", "(", ")", "{", "\\1", "[[]", "-", "]", "\\x41", "\\/", "[\\w-]", "\\k"]
)  # fmt: skip


@given(pieces=st.lists(PIECES, max_size=8))
def test_pattern_that_is_taken_compiles(pieces: list[str]) -> None:
    pattern = read_pattern("".join(pieces))
    if pattern.reason is None:
        try:
            BYTES.compiled(grammar_text(StructuredOutputsParams(json=text(pattern="".join(pieces))), {}))
        except GrammarError as error:
            raise AssertionError("".join(pieces)) from error
