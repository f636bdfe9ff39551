"""A conversation as its turns, each an ordered list of parts. The three APIs read their bodies into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    content: tuple[Text | Omitted, ...]
    is_error: bool = False
    # Of the tool, if the client says it.
    name: str | None = None

    @property
    def text(self) -> str:
        text = joined(self.content)
        # Templates have no other place for the flag.
        return f"Error: {text}" if self.is_error else text


Part = Text | Omitted | Thinking | Call | Result
CONTENT = (Text, Omitted)


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
    def content(self) -> tuple[Text | Omitted, ...]:
        return tuple(part for part in self.parts if isinstance(part, CONTENT))

    @property
    def text(self) -> str:
        return joined(self.content)


def joined(content: tuple[Text | Omitted, ...]) -> str:
    """Return content as one text: parts are joined by line ends."""
    return "\n".join(part.text for part in content)


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
