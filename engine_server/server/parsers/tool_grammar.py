"""Grammars of tool calls in the model's own form, in llguidance's variant of Lark's syntax where arguments are tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.parsers.tool_use import ToolUse

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
    trigger = form.before + form.text.partition("NAME")[0]
    if use.choice == "required":
        alone = (
            use.name is not None or not use.parallel or form.at_most_one or bool(form.before or form.after)
        )
        calls = call_formats(form, use.callable, alone)
        return tool_grammar(calls, "required", trigger, form.separator, not alone, reasoning_end)
    # A tool that isn't strict has any arguments.
    tools = [
        tool if tool in use.strict else {"function": {"name": tool["function"]["name"]}}
        for tool in use.callable
    ]
    calls = call_formats(form, tools, alone=True)
    return tool_grammar(calls, "auto", trigger, parallel=use.parallel, starts_after=reasoning_end)


def call_formats(form: CallForm, tools: Sequence[dict[str, Any]], alone: bool) -> list[CallFormat]:
    """Return the form of each tool's call. alone: with the text before and after all calls of an answer."""
    formats = []
    for tool in tools:
        function = tool["function"]
        begin, _, end = form.text.replace("NAME", function["name"], 1).partition("ARGUMENTS")
        if alone:
            begin, end = form.before + begin, end + form.after
        formats.append(CallFormat(begin, function.get("parameters") or ANY_OBJECT, end))
    return formats


class CallFormat(NamedTuple):
    """A call of one tool: text, the arguments as JSON of a schema, and text."""

    begin: str
    schema: dict[str, Any]
    end: str


def tool_grammar(
    calls: Sequence[CallFormat],
    choice: Literal["auto", "required", "named"],
    trigger: str,
    separator: str = "",
    parallel: bool = True,
    starts_after: list[int] | None = None,
) -> StructuredOutputsParams:
    """Return the grammar of an answer with tool calls, each of which is valid.

    calls: one for each tool that may be called. auto: text with any number of calls; `trigger`, with which all
    of them begin, always starts one. required: at least one call, and nothing else. named: one call, and nothing else.
    separator: the text between two calls without text between them. parallel: allow more than one call.
    starts_after: the tokens that end the reasoning.
    """
    tags = [
        {"type": "tag", "begin": one.begin, "content": _content(one.schema), "end": one.end} for one in calls
    ]
    format: dict[str, Any]
    if choice == "auto":
        format = {"type": "triggered_tags", "triggers": [trigger], "tags": tags}
    else:
        format = {"type": "tags_with_separator", "separator": separator, "tags": tags, "at_least_one": True}
    format["stop_after_first"] = choice == "named" or not parallel
    tag = msgspec.json.encode({"type": "structural_tag", "format": format}).decode()
    return StructuredOutputsParams(structural_tag=tag, starts_after=starts_after)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


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
