"""The regions of answers that a response template of transformers describes, for text in which marks are characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.utils.chat_parsing.response_templates import ResponseTemplateField, load_response_template

from engine_server.engine.conversation.capabilities import REASONING_FIELDS
from engine_server.server.conversation.calls.reading.events import ReaderFactory
from engine_server.server.conversation.calls.reading.readers import reader_factory
from engine_server.server.conversation.channels import Channels
from engine_server.server.conversation.layout import AnswerRegions
from engine_server.server.conversation.marks import MarkTokens, find_marks
from engine_server.server.conversation.regions import Delimiter, Kind, Region

CALL_FIELD = "tool_calls"
# The beginning of the names of fields for calls that models write beside the form of their template.
VARIANT = f"{CALL_FIELD}/"
CHANNEL_FIELD = "channel"
# What may follow a call, such as its end once more.
END_FIELD = "end_of_calls"
# Our addition to response templates: the model writes its marks by other tokens too.
SPELLED = "spelled"
# Unlimited white space at a delimiter's edge would make the search quadratic.
WHITESPACE_LIMIT = (r"\s*", r"\s{0,64}")
LITERALS = ("open", "close", "string_delims", "end")
PATTERNS = ("open_pattern", "close_pattern", "tag_pattern")


def read_regions(
    added_tokens: Mapping[int, str], template: Mapping[str, Any], channels: Channels | None
) -> AnswerRegions:
    """Return the regions of a response template. Raises ValueError for an invalid one.

    added_tokens: the texts of a tokenizer's added tokens, by id. channels: their delimiters, if the template has a
    field for them.
    """
    marks = find_marks(added_tokens, strings(template), bool(template.get(SPELLED)))
    given = {key: value for key, value in template.items() if key != SPELLED}
    fields: dict[str, ResponseTemplateField] = load_response_template(in_marked_text(given, marks)).fields
    regions = tuple(region_of(one, marks, channels) for one in fields.values())
    readers: dict[str, ReaderFactory] = {
        name: reader_factory(field) for name, field in fields.items() if is_call(name)
    }
    if channels is not None and channels.calls:
        readers[CHANNEL_FIELD] = reader_factory(fields[CHANNEL_FIELD])
    return AnswerRegions(regions, marks, readers)


def in_marked_text(value: Any, marks: MarkTokens, key: str = "") -> Any:
    """Return a template whose delimiters are those of marked text."""
    if isinstance(value, dict):
        return {name: in_marked_text(one, marks, name) for name, one in value.items()}
    if isinstance(value, list):
        return [in_marked_text(one, marks, key) for one in value]
    if isinstance(value, str) and key in LITERALS:
        return marks.marked(value)
    if isinstance(value, str) and key in PATTERNS:
        return marks.in_pattern(value.replace(*WHITESPACE_LIMIT) if key != "tag_pattern" else value)
    return value


def strings(value: Any) -> list[str]:
    """Return all strings in plain data."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in values for text in strings(item)]


def region_of(found: ResponseTemplateField, marks: MarkTokens, channels: Channels | None) -> Region:
    """Return the region of a field."""
    kind: Kind = "content"
    if is_call(found.name):
        kind = "call"
    elif found.name in REASONING_FIELDS:
        kind = "reasoning"
    open = delimiter_of(found.open_re, found.open_literals, found.open_literal_can_extend)
    close = delimiter_of(found.close_re, found.close_literals, found.close_literal_can_extend)
    interrupts = kind == "call" and open is not None and all(map(marks.begins, open.first_characters))
    route = None
    if channels is not None and found.name == CHANNEL_FIELD:
        route = lambda captures: channels.route(marks.plain(captures["header"]))  # noqa: E731
    return Region(
        name=found.name,
        kind=kind,
        open=open,
        close=close,
        interrupts=interrupts,
        route=route,
        only_known_tools=found.name.startswith(VARIANT),
        follows_calls=found.name == END_FIELD,
    )


def is_call(name: str) -> bool:
    """Return True for the name of a field of calls."""
    return name == CALL_FIELD or name.startswith(VARIANT)


def delimiter_of(pattern: Any, literals: list[str] | None, can_extend: bool) -> Delimiter | None:
    return None if pattern is None else Delimiter(pattern, tuple(literals) if literals else None, can_extend)
