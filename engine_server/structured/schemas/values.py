"""JSON values in schemas."""

from typing import Any

import msgspec


def json_type(value: Any) -> str:
    """Return the narrowest type of JSON Schema that a value has."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def canonical(value: Any) -> bytes:
    """Return one text for equal values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value, order="deterministic")
