"""The content of a message: text, pictures, and parts that the model can't take, of which the prompt has a note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from pydantic_core import PydanticCustomError

from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.conversation.turns import (
    PICTURE_ROLES,
    Content,
    ImagePart,
    Omitted,
    Result,
    Text,
    Turn,
)
from engine_server.server.api.ignored import IgnoredPart
from engine_server.server.api.pictures import PictureReader
from engine_server.server.http.errors import ApiError

MediaType = Literal[
    "image", "image_url", "input_image",
    "audio", "audio_url", "input_audio",
    "video", "video_url", "input_video",
    "document", "file", "input_file",
]  # fmt: skip
MEDIA_TYPES = get_args(MediaType)
PICTURE_TYPES = ("image", "image_url", "input_image")


class MediaUse(NamedTuple):
    """A part that the model can't take, and its place in the conversation."""

    part: IgnoredPart
    # It is in the user's newest turn.
    newest: bool


def read_content(
    value: object, text_types: Mapping[str, str], picture_types: Mapping[str, PictureReader]
) -> Content:
    """Return the parts of content, which may be null, a string or a list of parts.

    text_types: the field of the text by the type of a part. picture_types: how to read pictures that the model takes,
    by the type of a part.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(value),)
    if not isinstance(value, list):
        raise PydanticCustomError("content", "takes a string or a list of text parts")
    return tuple(read_part(part, number, text_types, picture_types) for number, part in enumerate(value))


def read_part(
    part: object,
    number: int,
    text_types: Mapping[str, str],
    picture_types: Mapping[str, PictureReader],
) -> Text | Omitted | ImagePart:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise PydanticCustomError(
            "content",
            "has as part {number} no object with a type; supported: {supported}",
            {"number": number, "supported": ", ".join(text_types)},
        )
    if kind in picture_types:
        return ImagePart(kind, picture_types[kind](part), str(number))
    if kind not in text_types:
        return Omitted(kind, str(number))
    text = part.get(text_types[kind])
    if not isinstance(text, str):
        raise PydanticCustomError("content", "has no text in part {number}", {"number": number})
    return Text(text)


def at(path: str, content: Content, role: str) -> Content:
    """Return the content of a role's turn, whose parts have their path in the body. path: that of the content."""
    return tuple(
        part if isinstance(part, Text) else placed(replace(part, path=f"{path}.{part.path}"), role)
        for part in content
    )


def placed(part: Omitted | ImagePart, role: str) -> Omitted | ImagePart:
    """Return a part as a turn of this role has it: not all may have pictures."""
    return part.note if isinstance(part, ImagePart) and role not in PICTURE_ROLES else part


def media_of(turns: Sequence[Turn]) -> list[MediaUse]:
    """Return the parts of a conversation that the model can't take.

    The newest turn of the user is what follows the last answer; a last turn of the assistant, which is continued, is
    none.
    """
    answers = [number for number, turn in enumerate(turns[:-1]) if turn.role == "assistant"]
    start = answers[-1] + 1 if answers else 0
    return [
        MediaUse(IgnoredPart(part.path, part.type), turn.role == "user" and number >= start)
        for number, turn in enumerate(turns)
        for part in omitted_in(turn)
    ]


def omitted_in(turn: Turn) -> Iterator[Omitted]:
    for part in turn.parts:
        for one in part.content if isinstance(part, Result) else (part,):
            if isinstance(one, Omitted):
                yield one


def refuse_media(part: IgnoredPart, refuses_pictures: str) -> ApiError:
    """Return the error for a part that the model can't take.

    refuses_pictures: why the model takes no pictures; empty if it takes them in other turns.
    """
    if not refuses_pictures:
        reason = "; it takes text, and pictures in turns of the user and in results of tools"
    elif part.type in PICTURE_TYPES:
        reason = f": {refuses_pictures}"
    else:
        reason = "; it takes text"
    message = f"{part} is a part that the model can't take{reason}"
    return ApiError(ErrorCode.UNSUPPORTED_VALUE, message, param=part.field)
