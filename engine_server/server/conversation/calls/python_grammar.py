"""Grammars of arguments that are Python's keyword arguments. Their values are JSON, which stands for Python's."""

from __future__ import annotations

from typing import Any

from engine_server.server.conversation.calls.dialect_grammar import form_rules
from engine_server.server.conversation.calls.literals import quoted
from engine_server.structured.schema import json_rule, unmended_json_rule
from engine_server.structured.schemas.alternatives import ObjectForm
from engine_server.structured.schemas.arguments import Argument, Arguments

KEYWORD = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"


def keyword_arguments(name: str, schema: Any | None) -> tuple[str, list[str]]:
    """Return the arguments of a call as a part of a rule, and further rules. schema: None for any arguments."""
    if schema is None:
        return f'({name}_any (", " {name}_any)*)?', [f'{name}_any: {KEYWORD} "=" {json_rule({})}']
    arguments = Arguments(schema)
    forms, rules = [], []
    for number, form in enumerate(arguments.forms or [ObjectForm()]):
        own = f"{name}_{number}"
        rules += form_rules(own, form, arguments, keyword, '", "')
        forms.append(f"{own}_first_0")
    return f"({' | '.join(forms)})", rules


def keyword(key: str, argument: Argument) -> str:
    """Return the body of a rule for an argument."""
    schema = {**argument.others, "type": sorted(argument.allowed.types)}
    return f"{quoted(f'{key}=')} {unmended_json_rule(schema)}"
