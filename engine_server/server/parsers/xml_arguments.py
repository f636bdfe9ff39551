"""Tool calls whose arguments are tags, a tag for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template

from engine_server.server.parsers.call_events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallStarted,
    Malformed,
)
from engine_server.server.parsers.json_text import escape
from engine_server.server.parsers.regions import Body, Closed, Opened, RegionScanner

# The group of a tag's pattern that matches the argument's value.
VALUE = r"(?P<value>.*?)"
ARGUMENT = "argument"


def argument_template(tag_pattern: str) -> ResponseTemplate | None:
    """Return a template whose regions are the arguments; None for a pattern that can't be read piece by piece."""
    opening, value, closing = tag_pattern.partition(VALUE)
    if not value or not closing or "(?P<key>" not in opening or "(?P" in closing:
        return None
    argument = {"open_pattern": opening, "close_pattern": closing, "transform": "{key}"}
    return load_response_template({"start_anchor": "\0", "fields": {ARGUMENT: argument}})


class XmlArguments:
    """Reads a region of tags. Strings are passed on as they arrive, other values at their end.

    properties: the schemas of the tool's arguments by name.
    """

    def __init__(self, name: str, template: ResponseTemplate, properties: Mapping[str, Any]) -> None:
        self._name = name
        self._properties = properties
        self._tags = RegionScanner(template)
        self._started = False
        self._first = True
        self._types: list[str] = []
        self._value: list[str] = []
        self._open = False

    def feed(self, text: str) -> list[CallEvent]:
        return self._start() + self._read(self._tags.feed(text))

    def close(self, terminated: bool) -> list[CallEvent]:
        events = self._start() + self._read(self._tags.finish())
        if self._open or not terminated:
            return [*events, Malformed()]
        return [*events, ArgumentText("{}" if self._first else "}"), CallEnded()]

    def _start(self) -> list[CallEvent]:
        if self._started:
            return []
        self._started = True
        return [CallStarted(self._name)]

    def _read(self, tags: list[Opened | Body | Closed]) -> list[CallEvent]:
        pieces = []
        for tag in tags:
            match tag:
                case Opened(captures={"key": key}):
                    self._open = True
                    self._types = schema_types(self._properties.get(key.strip()))
                    pieces.append(
                        ("{" if self._first else ", ") + json.dumps(key.strip(), ensure_ascii=False)
                    )
                    pieces.append(': "' if self._streams else ": ")
                    self._first = False
                case Body(text=text) if self._streams:
                    pieces.append(escape(text))
                case Body(text=text):
                    self._value.append(text)
                case Closed(text=text) if text:
                    self._open = False
                    pieces.append('"' if self._streams else convert("".join(self._value), self._types))
                    self._value = []
        return [ArgumentText("".join(pieces))] if pieces else []

    @property
    def _streams(self) -> bool:
        return self._types == ["string"]


def schema_types(schema: object) -> list[str]:
    """Return the types that a schema allows; a string where it doesn't say."""
    types: list[str] = []
    if isinstance(schema, dict):
        declared = schema.get("type")
        types += [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
        for union in ("anyOf", "oneOf"):
            for choice in schema.get(union) or []:
                types += schema_types(choice)
    return types or ["string"]


def convert(text: str, types: list[str]) -> str:
    """Return an argument's text as JSON: the value that it spells if the schema allows that, else a string."""
    try:
        value = json.loads(text.strip(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        value = {"True": True, "False": False, "None": None}.get(text.strip(), text)
    if isinstance(value, str):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    kind = json_type(value)
    allowed = kind in types or (kind == "integer" and "number" in types)
    return json.dumps(value if allowed else text, ensure_ascii=False)


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"
