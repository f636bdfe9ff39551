"""Anthropic's messages as a chat template takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from engine_server.server.api.content import MediaPart, MediaUse, media_of
from engine_server.server.api.messages.blocks import (
    Block,
    Content,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    join_text,
)
from engine_server.server.http.errors import ApiError

# A coding agent's first system block, which differs in each request and would defeat the prefix cache.
BILLING_HEADER = "x-anthropic-billing-header"


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant", "system"]
    content: Content


def media_in(messages: list[Message]) -> list[MediaUse]:
    """Return the media of the conversation, those of tools' results too."""
    contents: list[tuple[str, str, Sequence[Any]]] = []
    for number, message in enumerate(messages):
        path = f"messages.{number}.content"
        contents += [
            (f"{path}.{index}.content", "tool", block.content)
            for index, block in enumerate(message.content)
            if isinstance(block, ToolResultBlock)
        ]
        contents.append((path, message.role, message.content))
    return media_of(contents)


def template_messages(system: list[TextBlock], messages: list[Message]) -> list[dict[str, Any]]:
    """Return the conversation's turns. Consecutive messages of one role are one turn, as in Anthropic's API.

    Messages of the system at the beginning join the system's turn. A later one is a part of the user's turn in its
    place: some templates refuse it, and moved to the beginning it would change the prefix of every prompt after it.
    """
    opening = list(takewhile(lambda message: message.role == "system", messages))
    names = {
        block.id: block.name
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock)
    }
    instructions = [block for block in system if not block.text.startswith(BILLING_HEADER)]
    turns = input_turns("system", [*instructions, *blocks_of(opening)], names)
    conversation = messages[len(opening) :]
    for of_assistant, group in groupby(conversation, key=lambda message: message.role == "assistant"):
        if of_assistant:
            turns.append(assistant_turn(blocks_of(group)))
        else:
            turns += input_turns("user", blocks_of(group), names)
    return turns


def blocks_of(messages: Iterable[Message]) -> list[Block]:
    return [block for message in messages for block in message.content]


def assistant_turn(blocks: list[Block]) -> dict[str, Any]:
    texts: list[TextBlock | MediaPart] = []
    reasoning: list[str] = []
    calls = []
    for block in blocks:
        match block:
            case TextBlock() | MediaPart():
                texts.append(block)
            case ThinkingBlock():
                reasoning.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case RedactedThinkingBlock():
                pass
            case ToolResultBlock():
                raise misplaced(block.type, "assistant")
    turn: dict[str, Any] = {"role": "assistant", "content": join_text(texts)}
    if reasoning:
        turn["reasoning_content"] = "".join(reasoning)
    if calls:
        turn["tool_calls"] = calls
    return turn


def input_turns(role: str, blocks: list[Block], names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the turns of a user's message: one for each tool result, and one for the text between them.

    names: the tools' names by the ids of their calls.
    """
    turns: list[dict[str, Any]] = []
    for is_text, group in groupby(blocks, key=lambda block: isinstance(block, TextBlock | MediaPart)):
        if is_text:
            shown = [block for block in group if isinstance(block, TextBlock | MediaPart)]
            turns.append({"role": role, "content": join_text(shown)})
            continue
        for block in group:
            if not isinstance(block, ToolResultBlock) or role != "user":
                raise misplaced(block.type, role)
            turns.append(tool_turn(block, names))
    return turns


def tool_turn(result: ToolResultBlock, names: dict[str, str]) -> dict[str, Any]:
    text = join_text(result.content)
    turn = {
        "role": "tool",
        "tool_call_id": result.tool_use_id,
        # Templates have no other place for the flag.
        "content": f"Error: {text}" if result.is_error else text,
    }
    if result.tool_use_id in names:
        turn["name"] = names[result.tool_use_id]
    return turn


def misplaced(kind: str, role: str) -> ApiError:
    return ApiError(
        400, f"messages: a message of the role {role} can't have a {kind} block", param="messages"
    )
