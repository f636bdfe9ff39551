"""Patterns of property names that allow no name besides the declared ones.

llguidance 1.9 takes such a pattern for one more property that may follow: it allows a comma and then nothing more.
"""

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import msgspec

from engine_server.contract.base.quoting import quote
from engine_server.requests.messages import Vocabulary
from engine_server.structured.compiler import Compiler
from engine_server.structured.errors import GrammarError

# Keywords whose values are schemas by name, and those whose values are no schemas.
NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
PLAIN_VALUES = frozenset({"const", "enum", "default", "examples"})
# Keywords that join a schema with others, unless they stand alone or beside the following ones.
REFERENCES = frozenset({"anyOf", "oneOf", "$ref"})
ANNOTATIONS = frozenset({"$defs", "definitions", "title", "description", "default", "$schema", "$id"})


def without_closed_patterns(schema: Any) -> Any:
    """Return an equal schema in which each pattern allows names besides those that its object declares.

    Raises GrammarError where this depends on how the library joins schemas.
    """
    found = list(objects(schema))
    if not any("patternProperties" in one for one in found):
        return schema
    joined = any(map(joins, found))
    return _mended(schema, list({name for one in found for name in declared(one)} if joined else ()))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from objects(item)


def joins(schema: dict[str, Any]) -> bool:
    """Return True if a schema's properties are declared by several schemas."""
    return "allOf" in schema or (not REFERENCES.isdisjoint(schema) and len(schema.keys() - ANNOTATIONS) > 1)


def declared(schema: dict[str, Any]) -> list[str]:
    """Return the names of the properties that a schema lists or requires."""
    properties, required = schema.get("properties"), schema.get("required")
    names = [
        *(properties if isinstance(properties, dict) else ()),
        *(required if isinstance(required, list) else ()),
    ]
    return [name for name in dict.fromkeys(names) if isinstance(name, str)]


def _mended(schema: Any, elsewhere: Collection[str]) -> Any:
    """Return a schema with mended objects. elsewhere: names that joined schemas may declare for any of them."""
    if isinstance(schema, list):
        return [_mended(one, elsewhere) for one in schema]
    if not isinstance(schema, dict):
        return schema
    mended = {}
    for key, value in schema.items():
        if key in NAMED_SCHEMAS and isinstance(value, dict):
            mended[key] = {name: _mended(one, elsewhere) for name, one in value.items()}
        else:
            mended[key] = value if key in PLAIN_VALUES else _mended(value, elsewhere)
    if isinstance(schema.get("patternProperties"), dict) and isinstance(schema.get("properties", {}), dict):
        _apply_closed_patterns(mended, elsewhere)
    return mended


def _apply_closed_patterns(schema: dict[str, Any], elsewhere: Collection[str]) -> None:
    """Move the patterns of an object that allow declared names alone to the properties that they match."""
    names, patterns = declared(schema), schema["patternProperties"]
    properties = dict(schema.get("properties", {}))
    for pattern, rule in list(patterns.items()):
        if adds_names(pattern, names):
            if not adds_names(pattern, [*names, *elsewhere]):
                raise GrammarError(
                    f"patternProperties {quote(pattern)} matches only names of properties that another part of the "
                    "schema declares; declare them in this object"
                )
            continue
        del patterns[pattern]
        for name in names:
            if adds_names(pattern, [other for other in names if other != name]):
                properties[name] = {"allOf": [properties.get(name, True), rule]}
    schema["properties"] = properties


@cache
def byte_compiler() -> Compiler:
    """Return the compiler for a vocabulary whose tokens are the bytes."""
    end = 256
    return Compiler(Vocabulary([*(bytes([byte]) for byte in range(end)), b""], [end], [end]))


def adds_names(pattern: str, names: Collection[str]) -> bool:
    """Return True if a pattern matches a name that is none of `names`, or is no pattern."""
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, False),
        "patternProperties": {pattern: True},
        "additionalProperties": False,
    }
    try:
        matcher = byte_compiler().compile("start: %json " + msgspec.json.encode(schema).decode())
    except GrammarError:  # which the grammar's compilation reports
        return True
    matcher.consume_token(ord("{"))
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    return bool(bits >> ord('"') & 1)
