"""Messages and tools in the form of OpenAI's chat API, as a caller of `LLM.chat` has them, read as a conversation's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_server.contract.base.quoting import quote
from engine_server.engine.conversation.turns import (
    PICTURE_ROLES,
    Call,
    Content,
    ImagePart,
    Result,
    Text,
    Thinking,
    Turn,
)
from engine_server.engine.input.picture_parts import read_image_url
from engine_server.engine.input.sent_picture import SentPicture
from engine_server.requests.errors import InvalidRequestError

# The fields of the reasoning, of which the first with text counts.
THOUGHTS = ("reasoning", "reasoning_content", "thinking")
# Roles whose messages need no content.
CALLING = ("assistant", "tool")
# What a template is given of a tool's function.
DEFINED = ("name", "description", "parameters", "strict")


def read_turns(messages: Sequence[object], path: str, takes_pictures: bool) -> tuple[Turn, ...]:
    """Return messages as turns. Raises InvalidRequestError, which names the message.

    path: that of the messages. takes_pictures: the model takes pictures.
    """
    if not messages:
        raise wrong(path, "has no message; it takes at least one")
    return tuple(
        read_turn(message, f"{path}.{number}", takes_pictures) for number, message in enumerate(messages)
    )


def read_turn(message: object, path: str, takes_pictures: bool) -> Turn:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(role, str) or not role:
        raise wrong(path, f"is {quote(message)}; it takes an object with a role")
    content = read_content(message.get("content"), f"{path}.content", role, takes_pictures)
    name = text_or_none(message, "name", path)
    if role == "tool":
        return Turn(
            role, (Result(text_or_none(message, "tool_call_id", path), content, name=name),), path=path
        )
    thoughts = [text_or_none(message, field, path) for field in THOUGHTS]
    thinking = [Thinking(text) for text in thoughts if text][:1]
    calls = read_calls(message.get("tool_calls"), f"{path}.tool_calls", role)
    return Turn(role, (*thinking, *content, *calls), name, path)


def read_content(content: object, path: str, role: str, takes_pictures: bool) -> Content:
    if content is None and role in CALLING:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list | tuple):
        raise wrong(path, f"is {quote(content)}; it takes a string or a list of parts")
    return tuple(
        read_part(part, f"{path}.{number}", role, takes_pictures) for number, part in enumerate(content)
    )


def read_part(part: Any, path: str, role: str, takes_pictures: bool) -> Text | ImagePart:
    may_show = takes_pictures and role in PICTURE_ROLES
    match part:
        case str(text) | {"text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case {"type": "image_url"} if may_show:
            return ImagePart("image_url", read_image_url(part), path)
        case {"type": "image", "image": bytes(data)} if may_show:
            return ImagePart("image", SentPicture.of_file(data), path)
    taken = "text parts"
    if may_show:
        taken += ", and pictures as image_url or bytes"
    elif takes_pictures:
        taken += f", and pictures in messages of the roles {' and '.join(PICTURE_ROLES)}"
    raise wrong(path, f"is {quote(part)}; it takes {taken}")


def read_calls(calls: object, path: str, role: str) -> list[Call]:
    if not calls:
        return []
    if role != "assistant" or not isinstance(calls, list | tuple):
        raise wrong(path, f"is {quote(calls)}; it takes a list, in messages of the role assistant")
    return [read_call(call, f"{path}.{number}") for number, call in enumerate(calls)]


def read_call(call: Any, path: str) -> Call:
    match call:
        case {"function": {"name": str(name), "arguments": str() | dict() as given}}:
            arguments = read_arguments(given) if isinstance(given, str) else given
            return Call(text_or_none(call, "id", path), name, arguments)
    raise wrong(
        path, f"is {quote(call)}; it takes a function with a name, and arguments as JSON or an object"
    )


def read_arguments(text: str) -> dict[str, Any] | str:
    """Return arguments as an object; text that is none, such as one that was cut, stays text."""
    if not text.strip():
        return {}
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def read_tools(tools: Sequence[object] | None) -> list[dict[str, Any]]:
    """Return the definitions of tools. Raises InvalidRequestError, which names the tool."""
    return [read_tool(tool, f"tools.{number}") for number, tool in enumerate(tools or ())]


def read_tool(tool: object, path: str) -> dict[str, Any]:
    match tool:
        case {"type": "function", "function": {"name": str()} as function}:
            given = {key: function[key] for key in DEFINED if function.get(key) is not None}
            return {"type": "function", "function": given}
    message = (
        f"{path} is {quote(tool)}; it takes an object with the type function, and a function with a name"
    )
    raise InvalidRequestError(message, "tools")


def text_or_none(fields: Mapping[str, Any], name: str, path: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(f"{path}.{name}", f"is {quote(value)}; it takes a string")
    return value


def wrong(path: str, fault: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {fault}", "messages")
