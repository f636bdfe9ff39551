"""The reading of a response template's field of tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.utils.chat_parsing.content_parsers import process_field
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from engine_server.server.conversation.calls.reading.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallReader,
    CallStarted,
    Malformed,
    Properties,
    ReaderFactory,
)
from engine_server.server.conversation.calls.reading.json_calls import JsonArguments, JsonCalls
from engine_server.server.conversation.calls.reading.json_dialect import DialectReader
from engine_server.server.conversation.calls.reading.json_text import is_json_object, to_json
from engine_server.server.conversation.calls.reading.python_calls import PythonCalls
from engine_server.server.conversation.calls.reading.xml_arguments import XmlArguments, argument_region
from engine_server.structured.schemas.arguments import NO_TYPES

CAPTURED_NAME = "{name}"
WHOLE_CONTENT = "{content}"
# Our addition to a field's arguments: the region has calls of Python.
PYTHON_CALLS = "python_calls"


def reader_factory(field: ResponseTemplateField) -> ReaderFactory:
    """Return the readers for a field, which stream a call where the field's content allows it."""
    name, arguments = call_places(field)
    if field.content_args.get(PYTHON_CALLS):
        return lambda captures, properties: PythonCalls()
    if field.content == "json":
        make: ReaderFactory | None = None
        if name == CAPTURED_NAME and arguments == WHOLE_CONTENT:
            make = captured_name_reader
        elif field.content_args.get("names_are_keys"):
            make = lambda captures, properties: JsonCalls(None, "")  # noqa: E731
        elif keys := call_keys(field):
            make = lambda captures, properties: JsonCalls(*keys)  # noqa: E731
        if make is not None:
            return in_dialect(make, field.content_args)
    elif field.content == "xml-inline" and name == CAPTURED_NAME and arguments == WHOLE_CONTENT:
        plain = not field.content_args.get("value_parser") and not field.content_args.get("merge_duplicates")
        argument = argument_region(field.content_args["tag_pattern"]) if plain else None
        python, end = bool(field.content_args.get("python")), field.content_args.get("end")
        if argument is not None:
            return lambda captures, properties: XmlArguments(
                captures["name"].strip(),
                argument,
                properties.get(captures["name"].strip(), NO_TYPES),
                python,
                end,
            )
    return lambda captures, properties: WholeCalls(field, captures)


def call_places(field: ResponseTemplateField) -> tuple[str | None, str | None]:
    """Return the placeholders of a call's name and arguments; None for a form that isn't known."""
    transform = field.transform
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == WHOLE_CONTENT:
        return "{content.name}", "{content.arguments}"
    if not isinstance(function, dict):
        return None, None
    name, arguments = function.get("name"), function.get("arguments")
    return name if isinstance(name, str) else None, arguments if isinstance(arguments, str) else None


def call_keys(field: ResponseTemplateField) -> tuple[str, str] | None:
    """Return the keys of the name and the arguments in a call's JSON object; None if they are elsewhere."""
    name, arguments = (content_key(place, field.transform_each) for place in call_places(field))
    return (name, arguments) if name and arguments else None


def content_key(placeholder: str | None, each: bool) -> str | None:
    """Return the key of the content that a placeholder names; each: the content is a list of calls."""
    if placeholder is None:
        return None
    path = placeholder.strip("{}").split(".")
    if not each and len(path) == 2 and path[0] == "content":
        return path[1]
    return path[0] if each and len(path) == 1 else None


def captured_name_reader(captures: Mapping[str, str], properties: Properties) -> CallReader:
    return JsonArguments(captures["name"].strip())


def in_dialect(make: ReaderFactory, content_args: Mapping[str, Any]) -> ReaderFactory:
    delimiters = content_args.get("string_delims", [])
    bare_keys = bool(content_args.get("unquoted_keys"))
    if not delimiters and not bare_keys:
        return make
    return lambda captures, properties: DialectReader(make(captures, properties), delimiters, bare_keys)


class WholeCalls:
    """Reads a region of any form at its end, as transformers does."""

    def __init__(self, field: ResponseTemplateField, captures: Mapping[str, str]) -> None:
        self._field = field
        self._captures = dict(captures)
        self._pieces: list[str] = []

    def feed(self, text: str) -> list[CallEvent]:
        self._pieces.append(text)
        return []

    def close(self, terminated: bool) -> list[CallEvent]:
        try:
            value = process_field("".join(self._pieces), self._field, self._captures)
            functions = [call["function"] for call in (value if isinstance(value, list) else [value])]
            calls = [(function["name"], to_json(function["arguments"])) for function in functions]
        except (ValueError, KeyError, TypeError, RecursionError):
            return [Malformed()]
        if not all(isinstance(name, str) and name and is_json_object(text) for name, text in calls):
            return [Malformed()]
        events: list[CallEvent] = []
        for name, arguments in calls:
            events += [CallStarted(name), ArgumentText(arguments), CallEnded()]
        return events
