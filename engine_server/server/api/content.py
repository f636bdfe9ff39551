"""The content of a message: text, and media that no model here takes, of which the prompt has a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from engine_server.contract.errors import ErrorCode
from engine_server.server.api.fields import UNSUPPORTED
from engine_server.server.api.ignored import IgnoredPart
from engine_server.server.http.errors import ApiError

MediaType = Literal[
    "image", "image_url", "input_image",
    "audio", "audio_url", "input_audio",
    "video", "video_url", "input_video",
    "document", "file", "input_file",
]  # fmt: skip
MEDIA_TYPES = get_args(MediaType)


class MediaPart(BaseModel):
    """A picture, sound, film or file. What it holds is not read."""

    model_config = ConfigDict(strict=True)

    type: MediaType

    @property
    def text(self) -> str:
        """The note that takes its place in the prompt."""
        return f"[{self.type.removeprefix('input_').removesuffix('_url')} omitted]"


# By type: a conversation may have any number of them.
MEDIA = {kind: MediaPart(type=kind) for kind in MEDIA_TYPES}
# The parts of a message, of which text needs no type of its own.
Content = tuple[str | MediaPart, ...]


class MediaUse(NamedTuple):
    """A part that the model can't take, and its place in the conversation."""

    part: IgnoredPart
    # It is in the user's newest turn.
    newest: bool


def read_content(value: object, text_types: Mapping[str, str]) -> Content:
    """Return the parts of content, which may be null, a string or a list of parts.

    text_types: the field of the text by the type of a part.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise PydanticCustomError("content", "takes a string or a list of text parts")
    return tuple(read_part(part, number, text_types) for number, part in enumerate(value))


def read_part(part: object, number: int, text_types: Mapping[str, str]) -> str | MediaPart:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in MEDIA_TYPES:
        return MEDIA[kind]
    if not isinstance(part, dict) or kind not in tuple(text_types):  # which may have no hash
        raise PydanticCustomError(
            UNSUPPORTED,
            "has as part {number} a {kind}, which is not supported; supported: {supported}",
            {"number": number, "kind": str(kind)[:64], "supported": ", ".join(text_types)},
        )
    text = part.get(text_types[str(kind)])
    if not isinstance(text, str):
        raise PydanticCustomError("content", "has no text in part {number}", {"number": number})
    return text


def text_of(content: Content) -> str:
    """Return the content as templates take it: parts are joined by line ends."""
    return "\n".join(part if isinstance(part, str) else part.text for part in content)


def media_of(contents: Sequence[tuple[str, str, Sequence[Any]]]) -> list[MediaUse]:
    """Return the media of a conversation. contents: for each message its path in the body, its role and its parts.

    The newest turn of the user is what follows the last answer; a last message of the assistant, which is continued, is
    none.
    """
    answers = [number for number, (_, role, _) in enumerate(contents[:-1]) if role == "assistant"]
    start = answers[-1] + 1 if answers else 0
    return [
        MediaUse(IgnoredPart(f"{path}.{index}", part.type), role == "user" and number >= start)
        for number, (path, role, parts) in enumerate(contents)
        for index, part in enumerate(parts)
        if isinstance(part, MediaPart)
    ]


def refuse_media(part: IgnoredPart) -> ApiError:
    """Return the error for a part that the model can't take."""
    return ApiError(
        400,
        f"{part} is a part that the model can't take; it takes text",
        param=part.field,
        code=ErrorCode.UNSUPPORTED_VALUE,
    )
