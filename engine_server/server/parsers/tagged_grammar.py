"""Grammars of tool calls whose arguments are tags, in llguidance's variant of Lark's syntax."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine_server.server.parsers.call_form import CallForm


def tagged_calls(form: CallForm, tag: str, tools: Sequence[dict[str, Any]], several: bool) -> str:
    """Return the grammar of at least one call. tag: the form of one argument, with KEY and VALUE."""
    names = [f"call_{number}" for number in range(len(tools))]
    more = f" ({quoted(form.separator)} call)*" if several else ""
    rules = [f"start: call{more}", f"call: {' | '.join(names)}", r"TEXT: /(.|\n)*/"]
    for name, tool in zip(names, tools, strict=True):
        rules += call_rules(name, form.text, tag, tool["function"])
    return "\n".join(rules)


def call_rules(name: str, text: str, tag: str, function: dict[str, Any]) -> list[str]:
    """Return the rules of one tool's call: its arguments in the order of the schema."""
    parameters = function.get("parameters") or {}
    begin, _, end = text.replace("NAME", function["name"], 1).partition("ARGUMENTS")
    parts, rules = [quoted(begin)], []
    for number, (key, schema) in enumerate((parameters.get("properties") or {}).items()):
        argument = f"{name}_{number}"
        parts.append(argument if key in (parameters.get("required") or []) else f"{argument}?")
        opening, _, closing = tag.replace("KEY", key, 1).partition("VALUE")
        if is_free_text(schema):
            # A lazy rule ends at the first occurrence of the closing tag.
            rules.append(f"{argument}: {quoted(opening)} {argument}_text")
            rules.append(f"{argument}_text[lazy]: TEXT {quoted(closing)}")
        else:
            rules.append(f"{argument}: {quoted(opening)} {value_rule(schema)} {quoted(closing)}")
    return [f"{name}: {' '.join([*parts, quoted(end)])}", *rules]


def is_free_text(schema: Any) -> bool:
    return (
        isinstance(schema, dict) and schema.get("type") == "string" and not {"enum", "const"} & schema.keys()
    )


def value_rule(schema: Any) -> str:
    """Return the rule of a value: texts are written without quotes, other values as JSON."""
    values = (
        schema.get("enum", [schema["const"]] if "const" in schema else []) if isinstance(schema, dict) else []
    )
    if values and all(isinstance(value, str) for value in values):
        return f"({' | '.join(quoted(value) for value in values)})"
    return f"%json {json.dumps(schema)}"


def quoted(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
