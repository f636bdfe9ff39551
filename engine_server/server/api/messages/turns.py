"""Anthropic's messages as the turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from pydantic import BaseModel, ConfigDict

from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.conversation.turns import (
    CONTENT,
    Call,
    ImagePart,
    Omitted,
    Part,
    Result,
    Text,
    Thinking,
    Turn,
)
from engine_server.server.api.content import placed
from engine_server.server.api.messages.blocks import (
    Block,
    Content,
    ImageBlock,
    OmittedBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from engine_server.server.http.errors import ApiError

# A coding agent's first system block, which differs in each request and would defeat the prefix cache.
BILLING_HEADER = "x-anthropic-billing-header"

# The parts that a message may have, by its role.
PARTS: dict[str, tuple[type[Part], ...]] = {
    "user": (*CONTENT, Result),
    "assistant": (*CONTENT, Thinking, Call),
    "system": CONTENT,
}


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant", "system"]
    content: Content


def turns_of(system: Sequence[TextBlock], messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return the conversation's turns. Consecutive messages of one role are one turn, as in Anthropic's API.

    A message of the user is a turn for each of its results, and one for the content between them.
    """
    instructions = tuple(Text(block.text) for block in system if not block.text.startswith(BILLING_HEADER))
    turns = [Turn("system", instructions, path="system")] if instructions else []
    numbered = enumerate(messages)
    # Each message of the system is a turn of its own.
    for (role, _), group in groupby(
        numbered, key=lambda pair: (pair[1].role, pair[1].role == "system" and pair[0])
    ):
        same_role = list(group)
        parts = [part for number, message in same_role for part in parts_of(message, f"messages.{number}")]
        path = f"messages.{same_role[0][0]}"
        if role == "assistant":
            turns.append(Turn(role, tuple(parts), path=path))
        else:
            turns += input_turns(role, parts, path)
    return tuple(turns)


def input_turns(role: str, parts: Sequence[Part], path: str) -> Iterator[Turn]:
    for is_content, group in groupby(parts, key=lambda part: isinstance(part, CONTENT)):
        if is_content:
            yield Turn(role, tuple(group), path=path)
        else:
            yield from (Turn("tool", (result,), path=path) for result in group)


def parts_of(message: Message, path: str) -> Iterator[Part]:
    """Return the parts of one message. Raises ApiError 400 for a block that its role can't have."""
    for number, block in enumerate(message.content):
        part = part_of(block, f"{path}.content.{number}")
        if isinstance(part, ImagePart):
            part = placed(part, message.role)
        if part is None and message.role == "assistant":
            continue
        if not isinstance(part, PARTS[message.role]):
            raise misplaced(block.type, message.role)
        yield part


def part_of(block: Block, path: str) -> Part | None:
    """Return the part that a block is; None for one that nothing here can read. path: that of the block."""
    match block:
        case ThinkingBlock():
            return Thinking(block.thinking)
        case ToolUseBlock():
            return Call(block.id, block.name, block.input)
        case ToolResultBlock():
            content = tuple(
                content_of(one, f"{path}.content.{number}") for number, one in enumerate(block.content)
            )
            return Result(block.tool_use_id, content, bool(block.is_error))
        case RedactedThinkingBlock():
            return None
        case TextBlock():
            return content_of(block, path)


def content_of(block: TextBlock, path: str) -> Text | Omitted | ImagePart:
    match block:
        case OmittedBlock():
            return Omitted(block.kind, path)
        case ImageBlock():
            return ImagePart("image", block.sent, path)
        case _:
            return Text(block.text)


def misplaced(kind: str, role: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_VALUE,
        f"messages: a message of the role {role} can't have a {kind} block",
        param="messages",
    )
