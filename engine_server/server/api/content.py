"""The content of a message: text, and parts that no model here takes, of which the prompt has a note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from pydantic_core import PydanticCustomError

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api.ignored import IgnoredPart
from engine_server.server.conversation.history.turns import Omitted, Result, Text, Turn
from engine_server.server.http.errors import ApiError

MediaType = Literal[
    "image", "image_url", "input_image",
    "audio", "audio_url", "input_audio",
    "video", "video_url", "input_video",
    "document", "file", "input_file",
]  # fmt: skip
MEDIA_TYPES = get_args(MediaType)
# The parts of a message: text, or the type of a part that the model can't take.
Content = tuple[Text | Omitted, ...]


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
        return (Text(value),)
    if not isinstance(value, list):
        raise PydanticCustomError("content", "takes a string or a list of text parts")
    return tuple(read_part(part, number, text_types) for number, part in enumerate(value))


def read_part(part: object, number: int, text_types: Mapping[str, str]) -> Text | Omitted:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise PydanticCustomError(
            "content",
            "has as part {number} no object with a type; supported: {supported}",
            {"number": number, "supported": ", ".join(text_types)},
        )
    if kind not in text_types:
        return Omitted(kind, str(number))
    text = part.get(text_types[kind])
    if not isinstance(text, str):
        raise PydanticCustomError("content", "has no text in part {number}", {"number": number})
    return Text(text)


def at(path: str, content: Content) -> Content:
    """Return content whose parts have their path in the body. path: that of the content."""
    return tuple(
        Omitted(part.type, f"{path}.{part.path}") if isinstance(part, Omitted) else part for part in content
    )


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


def refuse_media(part: IgnoredPart) -> ApiError:
    """Return the error for a part that the model can't take."""
    return ApiError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"{part} is a part that the model can't take; it takes text",
        param=part.field,
    )
