"""The regions of an answer's text: reasoning, tool calls, content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, ResponseTemplateField

# Consumed text is dropped once it has this many characters, so that a long answer costs linear time.
CONSUMED_CHARACTERS = 4096
# Consumed characters that are kept for a pattern that looks behind.
LOOKBEHIND = 64


@dataclass(frozen=True, slots=True)
class Opened:
    """The start of a region. `text` is the delimiter, and `captures` are its named groups."""

    field: str
    text: str
    captures: dict[str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """Text of a region. A region without an opening delimiter starts with its first text."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a region. `text` is the delimiter, empty where the answer ended first."""

    field: str
    text: str


Event = Opened | Body | Closed


class RegionScanner(ResponseParser):
    """transformers' parser of a response template, with typed events and in linear time.

    Its search for delimiters is used as it is. Its handling of what it finds is replaced: it gives neither a
    delimiter's text nor its groups, raises for a malformed tool call and keeps the whole answer.
    """

    def __init__(self, template: ResponseTemplate, prefix: str = "") -> None:
        """prefix: the prompt. Its end may have opened a region, such as the reasoning."""
        self._body_end = 0
        anchored = bool(prefix) and template.start_anchor_re.search(prefix) is not None
        super().__init__(template, prefix if anchored else "")

    @property
    def prefix_events(self) -> list[Event]:
        """The events of the assistant message's beginning in the prompt."""
        events: list[Any] = self.initial_events
        return events

    @property
    def field(self) -> str | None:
        """The field in which the text is."""
        return self._current

    @property
    def retained_characters(self) -> int:
        """The number of characters that are kept."""
        return len(self._buffer)

    def feed(self, text: str) -> list[Event]:  # type: ignore[override]
        """Return the events that `text` completes; a possible beginning of a delimiter is held back."""
        self._buffer += text
        events: list[Any] = []
        self._process(events, eos=False)
        if self._pos > CONSUMED_CHARACTERS:
            consumed = self._pos - LOOKBEHIND
            self._buffer = self._buffer[consumed:]
            self._pos -= consumed
            self._body_end -= consumed
        return events

    def finish(self) -> list[Event]:
        """Return the events that were held back; no text follows."""
        events: list[Any] = []
        self._process(events, eos=True)
        return events

    def _accumulate(self, events: list[Any], text: str) -> None:
        self._body_end = self._pos + len(text)
        if text and self._current is not None:
            self._opened = True
            events.append(Body(self._current, text))

    def _open_explicit(self, events: list[Any], field: ResponseTemplateField, m: Any) -> None:
        self._current = field.name
        self._opened = True
        self._body_end = self._pos
        captures = {name: text for name, text in m.groupdict().items() if text is not None}
        events.append(Opened(field.name, m.group(), captures))

    def _close_current(self, events: list[Any]) -> None:
        if self._current is not None and self._opened:
            events.append(Closed(self._current, self._buffer[self._body_end : self._pos]))
        self._reset_to_implicit()
