"""Grammars of tool calls in the model's own form.

Calls whose arguments are JSON are described by a structural tag, those whose arguments are tags in llguidance's variant
of Lark's syntax.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.generation.tool_use import ToolUse

ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call as the model writes it, with NAME and ARGUMENTS in the places of both."""

    text: str
    before: str = ""
    separator: str = ""
    after: str = ""
    # The form of one argument, with KEY and VALUE, where arguments are not JSON.
    tag: str | None = None
    at_most_one: bool = False


def call_grammar(
    form: CallForm, use: ToolUse, reasoning_end: list[int] | None
) -> StructuredOutputsParams | None:
    """Return the grammar of an answer in which a call is demanded, or in which calls of strict tools are valid.

    None where calls of strict tools have a form that only a demanded call can be held to. The demand is for one call
    alone where the form of several calls has a beginning and an end of its own.
    """
    if form.tag is not None:
        if use.choice != "required":
            return None
        grammar = tagged_calls(form, form.tag, use.callable, several=use.parallel and use.name is None)
        return StructuredOutputsParams(grammar=grammar, starts_after=reasoning_end)
    format = demanded_calls(form, use) if use.choice == "required" else text_with_calls(form, use)
    tag = msgspec.json.encode({"type": "structural_tag", "format": format}).decode()
    return StructuredOutputsParams(structural_tag=tag, starts_after=reasoning_end)


def demanded_calls(form: CallForm, use: ToolUse) -> dict[str, Any]:
    """Return the format of at least one call, and nothing else."""
    alone = use.name is not None or not use.parallel or form.at_most_one or bool(form.before or form.after)
    return {
        "type": "tags_with_separator",
        "separator": form.separator,
        "tags": call_tags(form, use.callable, alone),
        "at_least_one": True,
        "stop_after_first": alone,
    }


def text_with_calls(form: CallForm, use: ToolUse) -> dict[str, Any]:
    """Return the format of text with any number of calls: the text with which calls begin always starts one."""
    # A tool that isn't strict has any arguments.
    tools = [
        tool if tool in use.strict else {"function": {"name": tool["function"]["name"]}}
        for tool in use.callable
    ]
    return {
        "type": "triggered_tags",
        "triggers": [form.before + form.text.partition("NAME")[0]],
        "tags": call_tags(form, tools, alone=True),
        "stop_after_first": not use.parallel,
    }


def call_tags(form: CallForm, tools: Sequence[dict[str, Any]], alone: bool) -> list[dict[str, Any]]:
    """Return the tag of each tool's call. alone: with the text before and after all calls of an answer."""
    tags = []
    for tool in tools:
        function = tool["function"]
        begin, _, end = form.text.replace("NAME", function["name"], 1).partition("ARGUMENTS")
        if alone:
            begin, end = form.before + begin, end + form.after
        schema = function.get("parameters") or ANY_OBJECT
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags


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
