"""A conversation as its turns, each an ordered list of parts, into which the APIs and `LLM.chat` read messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from engine_server.engine.input.sent_picture import SentPicture

# Roles whose turns may have pictures.
PICTURE_ROLES = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Omitted:
    """A part that the model can't take, such as a picture. The prompt has a note in its place."""

    # The client's name of its kind, and its path in the body.
    type: str
    path: str = ""

    @property
    def text(self) -> str:
        return f"[{self.type.removeprefix('input_').removesuffix('_url')[:64]} omitted]"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture for the model, in a turn of the user or in a tool's result."""

    # The client's name of its kind, and its path in the body.
    type: str
    sent: SentPicture
    path: str = ""

    @property
    def note(self) -> Omitted:
        """What stands in its place where the model can't take it."""
        return Omitted(self.type, self.path)

    @property
    def text(self) -> str:
        return self.note.text


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning of an earlier answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an earlier answer."""

    id: str | None
    name: str
    # An object, or text that is none.
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a tool call."""

    id: str | None
    content: Content
    is_error: bool = False
    # Of the tool, if the client says it.
    name: str | None = None

    @property
    def printed(self) -> Content:
        """Its content with the flag, for which templates have no other place."""
        if not self.is_error:
            return self.content
        first, *others = runs(self.content) or [Text("")]
        if isinstance(first, ImagePart):
            return (Text("Error:"), *self.content)
        return (replace(first, text=f"Error: {first.text}"), *others)


# Parts of any turn.
Content = tuple[Text | Omitted | ImagePart, ...]
CONTENT = (Text, Omitted, ImagePart)
Part = Text | Omitted | ImagePart | Thinking | Call | Result


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one role. Only those of the assistant have thoughts and calls, and only those of "tool" results."""

    role: str
    parts: tuple[Part, ...]
    # Of its author.
    name: str | None = None
    # Its path in the body.
    path: str = ""

    @property
    def content(self) -> Content:
        return tuple(part for part in self.parts if isinstance(part, CONTENT))

    @property
    def text(self) -> str:
        return joined(self.content)


def joined(content: Sequence[Text | Omitted | ImagePart]) -> str:
    """Return content as one text: parts are joined by line ends."""
    return "\n".join(part.text for part in content)


def runs(content: Content) -> list[Text | ImagePart]:
    """Return content with one text in the place of those that follow each other."""
    found: list[Text | ImagePart] = []
    for _, group in groupby(content, key=lambda part: isinstance(part, ImagePart)):
        parts = list(group)
        found += [part for part in parts if isinstance(part, ImagePart)] or [Text(joined(parts))]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation, and how its prompt ends."""

    turns: tuple[Turn, ...]
    # Append the beginning of an assistant's turn.
    open_answer: bool = True
    # Leave the last turn open, so that the answer continues it.
    continue_last: bool = False
    # Further variables of the template.
    variables: Mapping[str, Any] = field(default_factory=dict)
    # In place of the model's own template.
    template: str | None = None
    # Add special tokens to those that the template writes itself.
    add_special_tokens: bool = False
