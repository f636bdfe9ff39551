"""Turns of conversations in the forms of the three APIs, by the API's path."""

from typing import Any

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
# The type of a part with text.
TEXTS = {CHAT: "text", MESSAGES: "text", RESPONSES: "input_text"}


def text(path: str, content: str) -> dict[str, Any]:
    return {"type": TEXTS[path], "text": content}


def user(path: str, *parts: Any) -> dict[str, Any]:
    """Return a turn of the user with these parts, of which strings are texts."""
    return {"role": "user", "content": with_texts(path, parts)}


def call_and_result(path: str, *parts: Any) -> list[dict[str, Any]]:
    """Return a tool's call, and its result with these parts, of which strings are texts."""
    content = with_texts(path, parts)
    if path == MESSAGES:
        call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": content}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    if path == RESPONSES:
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
        return [call, {"type": "function_call_output", "call_id": "1", "output": content}]
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": content},
    ]


def with_texts(path: str, parts: tuple[Any, ...]) -> list[Any]:
    return [text(path, part) if isinstance(part, str) else part for part in parts]
