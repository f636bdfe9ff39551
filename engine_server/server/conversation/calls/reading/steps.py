"""The reading of a region of calls in steps, each of which takes some characters."""

from __future__ import annotations

from collections.abc import Callable

from engine_server.server.conversation.calls.reading.events import CallEvent, Malformed
from engine_server.server.conversation.calls.reading.json_text import WHITESPACE

# Characters before, between and after calls.
SEPARATORS = WHITESPACE + ",;[]"


class CallSteps:
    """Reads calls one after another.

    A step reads from a place of the text on, and returns the place after what it read.
    """

    def __init__(self) -> None:
        self._step: Callable[[str, int, list[CallEvent]], int] = self._between_calls
        self._failed = False
        self._any_call = False

    def feed(self, text: str) -> list[CallEvent]:
        events: list[CallEvent] = []
        place = 0
        while place < len(text) and not self._failed:
            place = self._step(text, place, events)
        return events

    def close(self, terminated: bool) -> list[CallEvent]:
        if self._failed or (self._step == self._between_calls and self._any_call):
            return []
        return [Malformed()]

    def _fail(self, events: list[CallEvent], text: str) -> int:
        self._failed = True
        events.append(Malformed())
        return len(text)

    def _between_calls(self, text: str, place: int, events: list[CallEvent]) -> int:
        if text[place] in SEPARATORS:
            return place + 1
        begun = self._begin(text, place)
        if begun is not None:
            return begun
        if not self._any_call:
            return self._fail(events, text)
        self._failed = True  # such as the beginning of a delimiter, where the answer was cut
        return len(text)

    def _begin(self, text: str, place: int) -> int | None:
        """Return the place after a call's first characters, having chosen the next step; None if no call begins."""
        raise NotImplementedError
