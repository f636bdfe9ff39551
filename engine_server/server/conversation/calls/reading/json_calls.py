"""Tool calls in JSON."""

from __future__ import annotations

import json

from engine_server.server.conversation.calls.reading.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallStarted,
    Malformed,
)
from engine_server.server.conversation.calls.reading.json_text import WHITESPACE, JsonValue, is_json_object
from engine_server.server.conversation.calls.reading.steps import CallSteps

# Models write either key for the arguments, whatever their template does.
ARGUMENT_KEYS = ("arguments", "parameters")


class JsonArguments:
    """Reads a region whose text is the arguments of one call; its delimiter has the name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._value = JsonValue()
        self._started = False
        self._finished = False

    def feed(self, text: str) -> list[CallEvent]:
        piece, _ = self._value.feed(text)
        if not piece or self._finished:
            return []
        events: list[CallEvent] = []
        if not self._started:
            if self._value.first != "{":
                self._finished = True
                return [Malformed()]
            self._started = True
            events.append(CallStarted(self._name))
        events.append(ArgumentText(piece))
        if self._value.ended:
            self._finished = True
            events.append(CallEnded())
        return events

    def close(self, terminated: bool) -> list[CallEvent]:
        if self._finished:
            return []
        if terminated and not self._started:
            return [CallStarted(self._name), ArgumentText("{}"), CallEnded()]
        return [Malformed()]


class JsonCalls(CallSteps):
    """Reads a region of JSON objects, each a call with its name and arguments under `name_key` and `arguments_key`.

    name_key: None for objects of which the only key is a call's name, and the value its arguments.
    """

    def __init__(self, name_key: str | None, arguments_key: str) -> None:
        super().__init__()
        self._name_key = name_key
        self._argument_keys = {arguments_key}
        if arguments_key in ARGUMENT_KEYS:
            self._argument_keys.update(ARGUMENT_KEYS)
        self._value = JsonValue()
        self._key = ""
        # A key, or a value that isn't streamed.
        self._collected: list[str] = []
        self._name: str | None = None
        self._started = False
        self._has_arguments = False
        # Arguments that precede the name.
        self._held: list[str] = []

    def _begin(self, text: str, place: int) -> int | None:
        if text[place] != "{":
            return None
        self._name, self._started, self._has_arguments, self._held = None, False, False, []
        self._step = self._member
        return place + 1

    def _member(self, text: str, place: int, events: list[CallEvent]) -> int:
        match text[place]:
            case '"':
                self._value, self._collected = JsonValue(), []
                self._step = self._read_key
                return place
            case "}" if self._started:
                self._any_call = True
                self._step = self._between_calls
                events.append(CallEnded())
            case character if character not in WHITESPACE + ",":
                return self._fail(events, text)
        return place + 1

    def _read_key(self, text: str, place: int, events: list[CallEvent]) -> int:
        piece, place = self._value.feed(text, place)
        self._collected.append(piece)
        if self._value.ended:
            key = decode_string("".join(self._collected))
            if key is None:
                return self._fail(events, text)
            self._key = key
            if self._name_key is None and not self._has_arguments:
                self._name, self._key = key, ""
            self._step = self._colon
        return place

    def _colon(self, text: str, place: int, events: list[CallEvent]) -> int:
        if text[place] == ":":
            self._value, self._collected = JsonValue(), []
            self._step = self._read_value
        elif text[place] not in WHITESPACE:
            return self._fail(events, text)
        return place + 1

    def _read_value(self, text: str, place: int, events: list[CallEvent]) -> int:
        piece, place = self._value.feed(text, place)
        is_arguments = self._key in self._argument_keys and not self._has_arguments
        if is_arguments and self._value.first == "{":
            self._add_arguments(piece, events)
        elif is_arguments or self._key == self._name_key:
            self._collected.append(piece)
        if not self._value.ended:
            return place
        self._step = self._member
        if self._key == self._name_key and not self._started:
            self._name = decode_string("".join(self._collected))
            if not self._name:
                return self._fail(events, text)
            if self._held:
                self._start(events)
        elif is_arguments:
            self._has_arguments = True
            if self._value.first != "{":
                arguments = decode_string("".join(self._collected))
                if arguments is None or not is_json_object(arguments):
                    return self._fail(events, text)
                self._add_arguments(arguments, events)
        return place

    def _add_arguments(self, piece: str, events: list[CallEvent]) -> None:
        if not piece:
            return
        if self._name is None:
            self._held.append(piece)
            return
        if not self._started:
            self._start(events)
        events.append(ArgumentText(piece))

    def _start(self, events: list[CallEvent]) -> None:
        assert self._name is not None
        self._started = True
        events.append(CallStarted(self._name))
        if self._held:
            events.append(ArgumentText("".join(self._held)))
            self._held = []


def decode_string(text: str) -> str | None:
    """Return the string that `text` encodes; None if it is another value or not JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
