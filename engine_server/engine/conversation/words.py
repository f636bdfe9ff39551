"""Tools, calls and results as text, for chat templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine_server.engine.conversation.turns import Content, Result, Text, Turn

# The name of a tool that is called, and its arguments, which are text if they are no object.
NamedArguments = tuple[str, dict[str, Any] | str]
# Returns calls as text.
WriteCalls = Callable[[Sequence[NamedArguments]], str]
# In the words with which the models of the Hermes format are trained.
DESCRIPTION = """You may call one or more functions to help with the user's request.

The functions are described by JSON within <tools></tools>:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as JSON within <tool_call></tool_call>:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def with_described_tools(turns: Sequence[Turn], tools: Sequence[dict[str, Any]]) -> list[Turn]:
    """Return a conversation with its tools described in the system's first turn."""
    if not tools:
        return list(turns)
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    description = Text(DESCRIPTION.format(tools=described))
    if turns and turns[0].role == "system":
        first = Text(f"{turns[0].text}\n")
        return [replace(turns[0], parts=(first, description)), *turns[1:]]
    return [Turn("system", (description,)), *turns]


def result_in_words(result: Result) -> Content:
    return (Text("<tool_response>"), *(result.printed or [Text("")]), Text("</tool_response>"))


def described_calls(calls: Sequence[NamedArguments]) -> str:
    """Return calls as the description of the tools asks for them."""
    written = ({"name": name, "arguments": arguments} for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in written)
