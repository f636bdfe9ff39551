"""The part of a conversation's answer in which stop strings are matched: content, and neither reasoning nor calls."""

from __future__ import annotations

from collections.abc import Sequence

from engine_server.requests.stop_scope import ScopedText
from engine_server.server.conversation.reader import ReadAnswer
from engine_server.server.conversation.regions import Body, Event


class ContentScope:
    """Divides one answer's text into content, marks and the rest."""

    def __init__(self, answer: ReadAnswer) -> None:
        self._marks = answer.regions.marks
        self._scanner, _ = answer.new_scanner()

    def feed(self, text: str) -> list[ScopedText]:
        return self._scoped(self._scanner.feed(self._marks.shown(text)))

    def end(self) -> list[ScopedText]:
        return self._scoped(self._scanner.finish())

    def _scoped(self, events: Sequence[Event]) -> list[ScopedText]:
        return [
            ScopedText(event.text, "content" if event.kind == "content" else "other")
            if isinstance(event, Body)
            else ScopedText(event.text, "mark", self._marks.plain(event.text))
            for event in events
        ]
