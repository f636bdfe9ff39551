"""Grammars of tool calls in the model's own form.

Calls whose arguments are JSON are described by a structural tag, those whose arguments are tags in llguidance's variant
of Lark's syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.generation.tool_use import ANY_OBJECT, ToolUse
from engine_server.server.parsers.tag_grammar import tagged_calls


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
        schemas = {tool["function"]["name"]: use.schema(tool) for tool in use.callable}
        several = use.parallel and use.name is None
        grammar = tagged_calls(form.text, form.tag, form.separator if several else None, schemas)
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
        "tags": call_tags(form, {tool["function"]["name"]: use.schema(tool) for tool in use.callable}, alone),
        "at_least_one": True,
        "stop_after_first": alone,
    }


def text_with_calls(form: CallForm, use: ToolUse) -> dict[str, Any]:
    """Return the format of text with any number of calls: the text with which calls begin always starts one."""
    # A tool that isn't strict has any arguments.
    schemas = {
        tool["function"]["name"]: use.schema(tool) if tool in use.strict else ANY_OBJECT
        for tool in use.callable
    }
    return {
        "type": "triggered_tags",
        "triggers": [form.before + form.text.partition("NAME")[0]],
        "tags": call_tags(form, schemas, alone=True),
        "stop_after_first": not use.parallel,
    }


def call_tags(form: CallForm, schemas: Mapping[str, Any], alone: bool) -> list[dict[str, Any]]:
    """Return the tag of each tool's call. alone: with the text before and after all calls of an answer.

    schemas: of the arguments, by the tools' names.
    """
    tags = []
    for name, schema in schemas.items():
        begin, _, end = form.text.replace("NAME", name, 1).partition("ARGUMENTS")
        if alone:
            begin, end = form.before + begin, end + form.after
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags
