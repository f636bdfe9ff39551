"""Grammars of arguments in a dialect of JSON, with bare keys and strings in delimiters of their own.

Arguments are held to their schemas' types and listed values; deeper values are any of their type.
"""

from __future__ import annotations

import json
from typing import Any

from engine_server.server.conversation.calls.grammars.literals import Literals, text_before
from engine_server.server.conversation.calls.grammars.pairs import pairs
from engine_server.structured.schema import unmended_json_rule
from engine_server.structured.schemas.arguments import Argument, Arguments

# Keys that no schema declares.
BARE_KEY = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"
NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
# Types whose values are written as in JSON.
SCALARS = {"integer", "number", "boolean", "null"}


def any_rules(quote: str, literals: Literals) -> list[str]:
    """Return the rules of any value, once for all tools. quote: the delimiter of strings."""
    return [
        f"any_text: {literals.write(quote)} any_end",
        *text_before("any_end", "TEXT", quote, literals),
        'any_value: any_text | any_number | "true" | "false" | "null" | any_array | any_object',
        f"any_number: {NUMBER}",
        'any_array: "[" (any_value ("," any_value)*)? "]"',
        'any_object: "{" (any_pair ("," any_pair)*)? "}"',
        f'any_pair: {BARE_KEY} ":" any_value',
    ]


def dialect_arguments(name: str, quote: str, schema: Any | None, literals: Literals) -> tuple[str, list[str]]:
    """Return the arguments of a call as a part of a rule, and further rules. schema: None for any arguments."""
    if schema is None:
        return "any_object", []
    written, rules = pairs(
        name, Arguments(schema), ":", ",", lambda argument: values(argument, quote, literals)
    )
    return f'"{{" {written} "}}"', rules


def values(argument: Argument, quote: str, literals: Literals) -> list[str]:
    """Return the values of an argument, each a part of a rule."""
    ways: list[str] = []
    for kind in sorted(argument.allowed.types):
        listed = argument.allowed[kind]
        if listed is not None:
            texts = [f"{quote}{one}{quote}" if kind == "string" else json.dumps(one) for one in listed]
            ways += map(literals.write, texts)
        elif kind in SCALARS or (kind == "array" and has_scalars(argument.others)):
            ways.append(unmended_json_rule({**argument.others, "type": kind}))
        else:
            ways.append({"string": "any_text", "array": "any_array", "object": "any_object"}[kind])
    return ways


def has_scalars(schema: Any) -> bool:
    """Return True if the items of an array are written as in JSON."""
    items = schema["allOf"][0].get("items")
    return isinstance(items, dict) and items.get("type") in SCALARS and "enum" not in items
