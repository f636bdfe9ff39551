"""Tool calls as Python writes them, with a name for every argument: `f(x="a", n=[1]), g()`."""

from __future__ import annotations

import json
import re

from engine_server.server.conversation.calls.reading.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallStarted,
)
from engine_server.server.conversation.calls.reading.json_text import WHITESPACE
from engine_server.server.conversation.calls.reading.python_text import PythonValue
from engine_server.server.conversation.calls.reading.steps import CallSteps

# The names of tools and arguments have no more characters.
MAX_NAME = 256
IN_NAME = re.compile(r"[\w.-]")
# Arguments of a schema may have any names but those with these characters.
NOT_IN_KEY = "()[]{}'\",\r\n"


class PythonCalls(CallSteps):
    """Reads a region of calls, separated by commas or lines, with or without the brackets of a list."""

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._key = ""
        self._value = PythonValue()
        self._has_value = False
        # The name of the call was passed on, with its first argument or its end.
        self._started = False

    def close(self, terminated: bool) -> list[CallEvent]:
        held = self._value.end() if self._step == self._read_value else ""
        return [*([ArgumentText(held)] if held else []), *super().close(terminated)]

    def _begin(self, text: str, place: int) -> int | None:
        if not IN_NAME.fullmatch(text[place]):
            return None
        self._name, self._started = text[place], False
        self._step = self._read_name
        return place + 1

    def _read_name(self, text: str, place: int, events: list[CallEvent]) -> int:
        if text[place] == "(":
            self._step = self._between_arguments
        elif IN_NAME.fullmatch(text[place]) and len(self._name) < MAX_NAME:
            self._name += text[place]
        else:
            return self._fail(events, text)
        return place + 1

    def _between_arguments(self, text: str, place: int, events: list[CallEvent]) -> int:
        character = text[place]
        if character == ")":
            self._open(events)
            events += [ArgumentText("}"), CallEnded()]
            self._any_call = True
            self._step = self._between_calls
        elif character not in WHITESPACE + ",":
            self._key = ""
            self._step = self._read_key
            return place
        return place + 1

    def _read_key(self, text: str, place: int, events: list[CallEvent]) -> int:
        if text[place] == "=" and self._key:
            separator = ", " if self._started else ""
            self._open(events)
            events.append(ArgumentText(f"{separator}{json.dumps(self._key.strip(), ensure_ascii=False)}: "))
            self._value, self._has_value = PythonValue(), False
            self._step = self._read_value
        elif text[place] in NOT_IN_KEY or len(self._key) == MAX_NAME:
            return self._fail(events, text)
        else:
            self._key += text[place]
        return place + 1

    def _read_value(self, text: str, place: int, events: list[CallEvent]) -> int:
        piece, place = self._value.feed(text, place)
        self._has_value |= bool(piece.strip())
        if piece:
            events.append(ArgumentText(piece))
        if self._value.ended:
            if not self._has_value:
                return self._fail(events, text)
            self._step = self._between_arguments
        return place

    def _open(self, events: list[CallEvent]) -> None:
        """Begin the call and its arguments, unless they have begun."""
        if not self._started:
            self._started = True
            events += [CallStarted(self._name), ArgumentText("{")]
