"""Tools for models whose chat templates have no place for them: the conversation describes them in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

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


def describe_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the conversation with the tools in the system's message, and with calls and their results as text."""
    described = [plain_message(message) for message in messages]
    if not tools:
        return described
    description = DESCRIPTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if described and described[0]["role"] == "system":
        first = described[0]["content"]
        return [{**described[0], "content": f"{first}\n\n{description}"}, *described[1:]]
    return [{"role": "system", "content": description}, *described]


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without fields of tools."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        texts.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": "\n".join(texts)}


def with_arguments(
    messages: Sequence[dict[str, Any]], convert: Callable[[dict[str, Any] | str], dict[str, Any] | str]
) -> list[dict[str, Any]]:
    """Return the conversation with the arguments of its calls converted."""

    def converted(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": convert(function["arguments"])}}

    return [
        {**message, "tool_calls": [converted(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def as_text(arguments: dict[str, Any] | str) -> str:
    """Return arguments as JSON text; those that are no object are text already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Return arguments as an object, with text that is none under one name."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments
