"""Tool calls whose arguments are tags, a tag for each."""

from __future__ import annotations

import json
from collections.abc import Callable

import regex

from engine_server.server.conversation.calls.reading.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallStarted,
    Malformed,
)
from engine_server.server.conversation.calls.reading.json_text import escape
from engine_server.server.conversation.calls.reading.python_text import python_as_json
from engine_server.server.conversation.regions import (
    Body,
    Closed,
    Delimiter,
    Event,
    Opened,
    Region,
    RegionScanner,
)
from engine_server.structured.schemas.arguments import TEXT, ArgumentTypes
from engine_server.structured.schemas.meaning import Allowed
from engine_server.structured.schemas.values import json_type

# The name of the region after the last argument.
END = "end"
# The group of a tag's pattern that matches the argument's value.
VALUE = r"(?P<value>.*?)"
# The group of a tag's pattern that only tags of strings match.
TEXT_GROUP = "text"


def argument_region(tag_pattern: str) -> Region | None:
    """Return the region that is one argument; None for a pattern that can't be read piece by piece."""
    opening, value, closing = tag_pattern.partition(VALUE)
    if not value or not closing or "(?P<key>" not in opening or "(?P" in closing:
        return None
    open, close = (Delimiter(regex.compile(pattern, regex.DOTALL)) for pattern in (opening, closing))
    return Region("argument", "call", open, close)


def end_region(text: str) -> Region:
    """Return the region that begins with the end of the arguments, and lasts until the end of the call's."""
    return Region(END, "call", Delimiter(regex.compile(regex.escape(text)), (text,)))


class XmlArguments:
    """Reads a region of tags. Strings are passed on as they arrive, other values at their end.

    types: what the tool's arguments may be. python: values that are no strings may be Python's. end: the text after the
    last argument; None: the region's end.
    """

    def __init__(
        self, name: str, argument: Region, types: ArgumentTypes, python: bool = False, end: str | None = None
    ) -> None:
        self._name = name
        self._python = python
        self._types = types
        self._tags = RegionScanner([argument, *([] if end is None else [end_region(end)])])
        self._has_end = end is not None
        self._ended = False
        self._started = False
        self._first = True
        # Of the latest argument.
        self._allowed = Allowed()
        self._value: list[str] = []
        self._open = False

    def feed(self, text: str) -> list[CallEvent]:
        return self._start() + self._read(self._tags.feed(text))

    def close(self, terminated: bool) -> list[CallEvent]:
        events = self._start() + self._read(self._tags.finish())
        if self._ended:
            return events
        if self._open or self._has_end or not terminated:
            return [*events, *self._held(), Malformed()]
        return [*events, ArgumentText("{}" if self._first else "}"), CallEnded()]

    def _start(self) -> list[CallEvent]:
        if self._started:
            return []
        self._started = True
        return [CallStarted(self._name)]

    def _read(self, tags: list[Event]) -> list[CallEvent]:
        pieces = []
        ended = self._ended
        for tag in tags:
            if self._ended:
                break
            match tag:
                case Opened(region=Region(name=name)) if name == END:
                    self._ended = True
                    pieces.append("{}" if self._first else "}")
                case Opened(captures={"key": key} as captures):
                    self._open = True
                    self._allowed = self._types.get(key.strip())
                    if TEXT_GROUP in captures and "string" in self._allowed:
                        self._allowed = TEXT
                    pieces.append(
                        ("{" if self._first else ", ") + json.dumps(key.strip(), ensure_ascii=False)
                    )
                    pieces.append(': "' if self._streams else ": ")
                    self._first = False
                case Body(kind="call", text=text) if self._streams:
                    pieces.append(escape(text))
                case Body(kind="call", text=text):
                    self._value.append(text)
                case Closed(text=text) if text and self._open:
                    self._open = False
                    pieces.append('"' if self._streams else self._convert("".join(self._value)))
                    self._value = []
        events: list[CallEvent] = [ArgumentText("".join(pieces))] if pieces else []
        return [*events, CallEnded()] if self._ended and not ended else events

    def _held(self) -> list[CallEvent]:
        """Return what is there of a value that has no end, as a beginning of JSON."""
        text = "".join(self._value)
        if not self._open or not text.strip():
            return []
        return [
            ArgumentText(json.dumps(text, ensure_ascii=False)[:-1] if "string" in self._allowed else text)
        ]

    def _convert(self, text: str) -> str:
        return convert(text, self._allowed, python_as_json if self._python else str)

    @property
    def _streams(self) -> bool:
        return self._allowed.types == {"string"}


def convert(text: str, allowed: Allowed, as_json: Callable[[str], str] = str) -> str:
    """Return an argument's text as JSON: the value that it spells if its schema allows that, else a string."""
    try:
        value = json.loads(as_json(text.strip()), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        value = {"True": True, "False": False, "None": None}.get(text.strip(), text)
    if isinstance(value, str):
        return json.dumps(text, ensure_ascii=False)
    if json_type(value) == "integer" and "number" not in allowed:
        value = int(value)
    if not allowed.has(value):
        return json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number that is too large for a float, and JSON
        return as_json(text.strip())


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
