"""The events of the tool calls in a region."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine_server.structured.schemas.arguments import ArgumentTypes


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The start of a call."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """The next fragment of the call's arguments, which join to a JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a complete call."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The region's text is no call from here on, or it ended within a call. No event follows."""


CallEvent = CallStarted | ArgumentText | CallEnded | Malformed


class CallReader(Protocol):
    """Reads the calls of one region as its text arrives."""

    def feed(self, text: str) -> list[CallEvent]:
        """Return the events that the region's next text completes."""

    def close(self, terminated: bool) -> list[CallEvent]:
        """Return the last events. terminated: the region was ended by its delimiter, not by the answer's end."""


# What the arguments of each tool may be, by the tool's name.
Properties = Mapping[str, ArgumentTypes]
# Makes the reader of a region from the groups of its delimiter.
ReaderFactory = Callable[[Mapping[str, str], Properties], CallReader]
