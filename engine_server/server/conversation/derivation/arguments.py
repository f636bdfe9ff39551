"""The form of a call's arguments: JSON, or a tag for each."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import Any

from engine_server.server.conversation.derivation.pieces import common_end, common_start
from engine_server.server.conversation.derivation.probes import (
    KEYS,
    NAMES,
    VALUES,
    Answer,
    Arguments,
    Probes,
    UnknownFormError,
)

NUMBER = 7316
NESTED = {"deep": [True, None, {"x": 1}]}


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """Arguments that are one JSON object."""

    def span(self, text: str, start: int, arguments: Arguments) -> tuple[int, int]:
        """Return the place of printed arguments in a text from a place on."""
        found = json_span(text, start, arguments)
        if found is None:
            raise UnknownFormError("the arguments of two calls are not printed alike")
        return found


@dataclass(frozen=True, slots=True)
class TagArguments:
    """Arguments that are a tag each: the texts around the key and the value."""

    open: str
    middle: str
    close: str
    # In place of `middle`, where the value is no string.
    other_middle: str
    # Values that are no strings are Python's.
    python: bool

    def span(self, text: str, start: int, arguments: Arguments) -> tuple[int, int]:
        """Return the place of printed arguments, each a string, in a text from a place on."""
        places = [text.index(key, start) for key in arguments]
        last = list(arguments.values())[-1]
        end = text.index(last, places[-1]) + len(last)
        return places[0] - len(self.open), end + len(self.close)


ArgumentForm = JsonArguments | TagArguments


def derive_arguments(probes: Probes) -> ArgumentForm:
    """Return the form of the arguments. Raises UnknownFormError."""
    one = printed_call(probes, {KEYS[0]: VALUES[0]})
    if json_span(one, 0, {KEYS[0]: VALUES[0]}) is not None:
        return JsonArguments()
    if KEYS[0] not in one or VALUES[0] not in one:
        raise UnknownFormError("the arguments of calls are not printed")
    return derive_tags(probes)


def derive_tags(probes: Probes) -> TagArguments:
    """Return the texts around the keys and values of arguments."""
    both = printed_call(probes, dict(zip(KEYS, VALUES, strict=True)))
    head, middle, between, second, tail = split(both, KEYS[0], VALUES[0], KEYS[1], VALUES[1])
    open, _ = common_end(head, between)
    open = open.lstrip()
    close = common_start(between[: len(between) - len(open)], tail)
    if (
        middle != second
        or not open
        or not close.strip()
        or between[len(close) : len(between) - len(open)].strip()
    ):
        raise UnknownFormError("arguments are neither JSON nor tags")
    _, other, after = split(printed_call(probes, {KEYS[0]: NUMBER}), KEYS[0], str(NUMBER))
    if not after.startswith(close):
        raise UnknownFormError("the tags of strings and of other values end otherwise")
    nested = split(printed_call(probes, {KEYS[0]: NESTED}), KEYS[0])[1]
    return TagArguments(open, middle, close, other, prints_python(nested[len(other) :].partition(close)[0]))


def prints_python(text: str) -> bool:
    """Return True if a nested value is printed as Python's, False if as JSON."""
    for read, python in ((json.loads, False), (ast.literal_eval, True)):
        try:
            if read(text) == NESTED:
                return python
        except (ValueError, SyntaxError, RecursionError):
            continue
    raise UnknownFormError("objects in arguments are neither JSON nor Python's")


def printed_call(probes: Probes, arguments: Arguments) -> str:
    """Return what a template prints of one call after its name."""
    rendering = probes.render(Answer(calls=((NAMES[0], arguments),)))
    if rendering is None or NAMES[0] not in rendering.text:
        raise UnknownFormError("a call is refused for its arguments")
    return rendering.text.partition(NAMES[0])[2]


def split(text: str, *parts: str) -> list[str]:
    """Return the texts around some parts, in order."""
    texts = []
    for part in parts:
        before, found, text = text.partition(part)
        if not found:
            raise UnknownFormError("the arguments of calls are not printed in order")
        texts.append(before)
    return [*texts, text]


def json_span(text: str, start: int, arguments: Any) -> tuple[int, int] | None:
    """Return the place of arguments as a JSON object in a text; None if they are nowhere."""
    decoder = json.JSONDecoder()
    while (start := text.find("{", start)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if value == arguments:
            return start, end
        start += 1
    return None
