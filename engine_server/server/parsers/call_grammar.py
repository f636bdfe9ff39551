"""Grammars of tool calls in the model's own form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine_server.server.parsers.call_form import CallForm
from engine_server.server.parsers.tool_use import ToolUse

ANY_OBJECT = {"type": "object"}


def call_tags(form: CallForm, tools: Sequence[dict[str, Any]], alone: bool) -> list[dict[str, Any]]:
    """Return the structural tags of the tools. alone: a call is the only one, within what precedes and follows all."""
    tags = []
    for tool in tools:
        function = tool["function"]
        begin, _, end = form.text.replace("NAME", function["name"], 1).partition("ARGUMENTS")
        if alone:
            begin, end = form.before + begin, end + form.after
        content = {"type": "json_schema", "json_schema": function.get("parameters") or ANY_OBJECT}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags


def call_grammar(form: CallForm, use: ToolUse) -> str | None:
    """Return the structural tag that an answer must match, None if its text is free.

    Only one call can be demanded where the form of several has a beginning and an end of its own.
    """
    if use.choice == "required":
        single = (
            not use.parallel or form.at_most_one or bool(form.before or form.after) or use.name is not None
        )
        format = {
            "type": "tags_with_separator",
            "tags": call_tags(form, use.callable, single),
            "separator": form.separator,
            "at_least_one": True,
            "stop_after_first": single,
        }
    elif use.strict:
        trigger = form.before + form.text.partition("NAME")[0]
        # A tool that isn't strict has any arguments.
        tools = [
            tool if tool in use.strict else {"function": {**tool["function"], "parameters": ANY_OBJECT}}
            for tool in use.callable
        ]
        format = {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": call_tags(form, tools, alone=True),
            "at_least_one": False,
            "stop_after_first": not use.parallel,
        }
    else:
        return None
    return json.dumps({"type": "structural_tag", "format": format})
