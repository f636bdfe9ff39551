"""JSON schemas within a grammar."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine_server.contract.base.bounds import SCHEMA_DEPTH
from engine_server.structured.errors import GrammarError
from engine_server.structured.name_patterns import without_closed_patterns

# The whitespace between two tokens of JSON. The limit keeps a model from generating nothing else.
WHITESPACE = r"[ \t\n\r]{1,40}"

# Levels that the server puts around the schemas of a request: definitions, and structural tags of tools' calls.
ADDED_DEPTH = 8


def json_rule(schema: object, options: Mapping[str, Any] | None = None) -> str:
    """Return the body of a Lark rule that matches JSON values of a schema.

    options: llguidance's JsonCompileOptions; by default `WHITESPACE` is allowed between tokens. Raises GrammarError.
    """
    if not isinstance(schema, dict):
        raise GrammarError("a JSON schema is an object")
    return unmended_json_rule(without_closed_patterns(schema), options)


def unmended_json_rule(schema: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> str:
    """Return the body of a rule without compiling anything."""
    chosen = {"coerce_one_of": True, **(options or {"whitespace_pattern": WHITESPACE})}
    return "%json " + msgspec.json.encode({**schema, "x-guidance": chosen}).decode()


def parse_json(text: str, name: str) -> Any:
    """Parse JSON of limited depth."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"{name} is not valid JSON: {error}") from error
    level, depth = [value], 0
    while level := [child for one in level for child in children(one)]:
        depth += 1
        if depth > SCHEMA_DEPTH.limit + ADDED_DEPTH:
            raise GrammarError(f"{name} is nested deeper than {SCHEMA_DEPTH.limit} {SCHEMA_DEPTH.things}")
    return value


def children(value: object) -> list[Any]:
    """Return the values in an array or object."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def without_additional_properties(schema: Any) -> Any:
    """Return a schema whose objects allow no properties but those that it names."""
    if isinstance(schema, list):
        return [without_additional_properties(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: without_additional_properties(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) or isinstance(schema.get("patternProperties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
