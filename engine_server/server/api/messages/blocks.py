"""Content blocks of Anthropic's messages, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from engine_server.engine.input.sent_picture import SentPicture
from engine_server.server.api import pictures
from engine_server.server.api.fields import UNSUPPORTED, Items, picture_readers


def text_as_block(value: object) -> object:
    """Return content that is a string as a list of one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def only_types(*supported: str, noun: str = "a block") -> BeforeValidator:
    """Return a validator that refuses others of what the noun says by the name of their type."""

    def check(value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in supported:
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
TextContent = Annotated[Items[Annotated[TextBlock, only_types("text")]], BeforeValidator(text_as_block)]


class OmittedBlock(TextBlock):
    """A block that no model here takes, such as a picture. What it holds is not read."""

    text: str = ""
    # The client's name of its type.
    kind: str


class ImageBlock(TextBlock):
    """A picture, for a model that takes some."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str = ""
    sent: SentPicture


def known_or_omitted(*known: str) -> WrapValidator:
    """Return a validator that reads blocks of other types as text, where they have any, or omits them."""

    def check(value: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(kind, str) or kind in known:
            return read(value)
        if (read_picture := picture_readers(info, pictures.MESSAGES).get(kind)) is not None:
            return ImageBlock(type="text", sent=read_picture(value))
        text = referred_text(value)
        return OmittedBlock(type="text", kind=kind) if text is None else TextBlock(type="text", text=text)

    return WrapValidator(check)


def referred_text(block: dict[str, Any]) -> str | None:
    """Return the text of a reference to a tool, of a search result or of a document; None if a block has none."""
    match block:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return name
        case {"type": "search_result", "title": str(title), "source": str(source), "content": list(content)}:
            texts = [
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            ]
            return "\n".join([title, source, *texts])
        case {"type": "document", "source": {"type": "text", "data": str(data)}}:
            heading = block.get("title")
            return f"{heading}\n{data}" if isinstance(heading, str) else data
        case _:
            return None


# Content of tools' results.
ResultContent = Annotated[
    Items[Annotated[TextBlock, known_or_omitted("text")]],
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
    Annotated[
        TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
        Discriminator("type"),
    ],
    known_or_omitted("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]
Content = Annotated[Items[Block], BeforeValidator(text_as_block)]
