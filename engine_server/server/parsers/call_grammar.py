"""Grammars of tool calls in the model's own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.server.generation.tool_grammar import CallFormat, tool_grammar
from engine_server.server.parsers.call_form import CallForm
from engine_server.server.parsers.tagged_grammar import tagged_calls
from engine_server.server.parsers.tool_use import ToolUse

ANY_OBJECT: dict[str, Any] = {"type": "object"}


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
    if use.choice == "required":
        alone = (
            use.name is not None or not use.parallel or form.at_most_one or bool(form.before or form.after)
        )
        calls = call_formats(form, use.callable, alone)
        return tool_grammar(calls, "required", form.separator, parallel=not alone, starts_after=reasoning_end)
    # A tool that isn't strict has any arguments.
    tools = [
        tool if tool in use.strict else {"function": {"name": tool["function"]["name"]}}
        for tool in use.callable
    ]
    return tool_grammar(
        call_formats(form, tools, alone=True),
        "auto",
        parallel=use.parallel,
        starts_after=reasoning_end,
        trigger=form.before + form.text.partition("NAME")[0],
    )


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
