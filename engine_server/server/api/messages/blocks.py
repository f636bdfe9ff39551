"""Content blocks of Anthropic's messages, as clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator
from pydantic_core import PydanticCustomError

from engine_server.server.api.content import MEDIA_TYPES, MediaPart
from engine_server.server.api.fields import UNSUPPORTED

SUPPORTED_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


def text_as_block(value: object) -> object:
    """Return content that is a string as a list of one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def only_types(*supported: str, omitted: Sequence[str] = (), noun: str = "a block") -> BeforeValidator:
    """Return a validator that refuses others of what the noun says by the name of their type.

    omitted: further types, which the prompt leaves out.
    """

    def check(value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in (*supported, *omitted):
            raise PydanticCustomError(
                UNSUPPORTED,
                "is {noun} of type {kind}, which is not supported; supported: {supported}",
                {"noun": noun, "kind": kind[:64], "supported": ", ".join(supported)},
            )
        return value

    return BeforeValidator(check)


class TextBlock(BaseModel):
    """Text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


# Text content, which may also be a string.
TextContent = Annotated[list[Annotated[TextBlock, only_types("text")]], BeforeValidator(text_as_block)]


# Content of tools' results.
ResultContent = Annotated[
    list[
        Annotated[
            Annotated[TextBlock | MediaPart, Discriminator("type")], only_types("text", omitted=MEDIA_TYPES)
        ]
    ],
    BeforeValidator(text_as_block),
]


class ThinkingBlock(BaseModel):
    """The reasoning of an earlier answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["thinking"]
    thinking: str
    # Ours are not checked.
    signature: str | None = None


class RedactedThinkingBlock(BaseModel):
    """Reasoning that only Anthropic's servers can read."""

    model_config = ConfigDict(strict=True)

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(BaseModel):
    """A tool call of an earlier answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(BaseModel):
    """The result of a tool call."""

    model_config = ConfigDict(strict=True)

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent = []
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | MediaPart,
    Discriminator("type"),
]
Content = Annotated[
    list[Annotated[Block, only_types(*SUPPORTED_BLOCKS, omitted=MEDIA_TYPES)]], BeforeValidator(text_as_block)
]


def join_text(blocks: Sequence[TextBlock | MediaPart]) -> str:
    """Return the text of several blocks, as the chat API joins text parts."""
    return "\n".join(block.text for block in blocks)
