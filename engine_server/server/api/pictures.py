"""Pictures as parts of each API's content. What is wrong with one is said once its place in the body is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine_server.contract.base.quoting import quote
from engine_server.engine.input.picture_parts import picture_of_url, read_image_url
from engine_server.engine.input.sent_picture import SentPicture, wrong_picture

PictureReader = Callable[[Mapping[str, Any]], SentPicture]


def read_input_image(part: Mapping[str, Any]) -> SentPicture:
    """Read a part of the responses API."""
    return picture_of_url(part.get("image_url"), part.get("detail"), part, "image_url")


def read_source(block: Mapping[str, Any]) -> SentPicture:
    """Read a block of Anthropic's messages API."""
    match block.get("source"):
        case {"type": "base64", "data": str(data)}:
            return SentPicture(data, is_url=False)
        case {"type": "url", "url": str(url)}:
            return SentPicture(url, is_url=True)
        case source:
            kind = source.get("type") if isinstance(source, Mapping) else None
            return wrong_picture(
                f"the source of the picture has the type {quote(kind)}; it takes base64, with data"
            )


# By the type of a part.
CHAT: Mapping[str, PictureReader] = {"image_url": read_image_url}
RESPONSES: Mapping[str, PictureReader] = {"input_image": read_input_image}
MESSAGES: Mapping[str, PictureReader] = {"image": read_source}
