"""Tool calls that are calls of Python, with keyword arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from engine_server.server.conversation.calls.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallStarted,
    Malformed,
)
from engine_server.server.conversation.calls.json_calls import SEPARATORS
from engine_server.server.conversation.calls.json_text import WHITESPACE
from engine_server.server.conversation.calls.python_text import PythonValue

IN_NAME = re.compile(r"[\w.-]")
# A longer word names nothing.
MAX_NAME = 256


class PythonCalls:
    """Reads a region of calls such as `[f(a=1, b="x"), g()]`."""

    def __init__(self) -> None:
        # Reads from a place of the text on, and returns the place after it.
        self._step: Callable[[str, int, list[CallEvent]], int] = self._between_calls
        self._failed = False
        self._any_call = False
        # The name of the call or of the argument.
        self._word = ""
        self._first = True
        self._value = PythonValue()

    def feed(self, text: str) -> list[CallEvent]:
        events: list[CallEvent] = []
        place = 0
        while place < len(text) and not self._failed:
            place = self._step(text, place, events)
        return events

    def close(self, terminated: bool) -> list[CallEvent]:
        done = self._step == self._between_calls and self._any_call and not self._word
        return [] if self._failed or done else [Malformed()]

    def _between_calls(self, text: str, place: int, events: list[CallEvent]) -> int:
        character = text[place]
        if character == "(" and self._word:
            events.append(CallStarted(self._word))
            self._word, self._first = "", True
            self._step = self._between_arguments
        elif self._is_word(character):
            self._word += character
        elif self._word or character not in SEPARATORS:
            return self._fail(text, events)
        return place + 1

    def _between_arguments(self, text: str, place: int, events: list[CallEvent]) -> int:
        character = text[place]
        if character == "=" and self._word:
            key = json.dumps(self._word, ensure_ascii=False)
            events.append(ArgumentText(f"{'{' if self._first else ', '}{key}: "))
            self._word, self._first = "", False
            self._value = PythonValue()
            self._step = self._argument
        elif character == ")" and not self._word:
            events += [ArgumentText("{}" if self._first else "}"), CallEnded()]
            self._any_call = True
            self._step = self._between_calls
        elif self._is_word(character):
            self._word += character
        elif self._word or character not in WHITESPACE + ",":
            return self._fail(text, events)
        return place + 1

    def _argument(self, text: str, place: int, events: list[CallEvent]) -> int:
        piece, place = self._value.feed(text, place)
        if piece:
            events.append(ArgumentText(piece))
        if self._value.ended:
            self._step = self._between_arguments
        return place

    def _is_word(self, character: str) -> bool:
        return bool(IN_NAME.match(character)) and len(self._word) < MAX_NAME

    def _fail(self, text: str, events: list[CallEvent]) -> int:
        self._failed = True
        if not (self._any_call and self._step == self._between_calls):
            events.append(Malformed())
        return len(text)
