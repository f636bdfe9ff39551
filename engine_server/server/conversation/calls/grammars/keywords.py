"""Grammars of arguments as Python writes them, with a name for every value: `x="a", n=[1]`.

Values are written as in JSON, whose strings, numbers, lists and objects are Python's too. Within lists and objects
`true`, `false` and `null` stay JSON's, which the reader takes for Python's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from engine_server.server.conversation.calls.grammars.literals import Literals
from engine_server.server.conversation.calls.grammars.pairs import pairs
from engine_server.structured.schema import unmended_json_rule
from engine_server.structured.schemas.arguments import Argument, Arguments

# The spelling of constants.
Constants = Literal["python", "json"]
# The name of an argument that no schema declares.
ANY_KEY = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"
OF_PYTHON = {"boolean": ['"True"', '"False"'], "null": ['"None"']}


def keyword_arguments(
    name: str, constants: Constants, schema: Any | None, literals: Literals
) -> tuple[str, list[str]]:
    """Return the arguments of a call as a part of a rule, and further rules. schema: None for any arguments."""
    if schema is None:
        value = f'({unmended_json_rule({})} | "True" | "False" | "None")'
        keyword = f'{name}_keyword: {ANY_KEY} "=" {value}'
        return f'({name}_keyword (", " {name}_keyword)*)?', [keyword]
    return pairs(name, Arguments(schema), "=", ", ", lambda argument: values(argument, constants, literals))


def values(argument: Argument, constants: Constants, literals: Literals) -> list[str]:
    """Return the values of an argument, each a part of a rule."""
    ways = []
    for kind in sorted(argument.allowed.types):
        listed = argument.allowed[kind]
        if listed is not None:
            ways += [literals.write(constant(one, constants)) for one in listed]
        elif constants == "python" and kind in OF_PYTHON:
            ways += OF_PYTHON[kind]
        else:
            ways.append(unmended_json_rule({**argument.others, "type": kind}))
    return ways


def write_keywords(arguments: Mapping[str, Any], constants: Constants) -> str:
    """Return arguments as the grammar lets a model write them."""
    return ", ".join(f"{key}={constant(value, constants)}" for key, value in arguments.items())


def constant(value: Any, constants: Constants) -> str:
    """Return a value as the model writes it."""
    if constants == "python" and (value is None or isinstance(value, bool)):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
