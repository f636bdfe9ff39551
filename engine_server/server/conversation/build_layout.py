"""The layout of answers in one format, for a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_server.engine.conversation.capabilities import REASONING_FIELDS
from engine_server.requests.reasoning import Mark
from engine_server.server.conversation.channels import Channels
from engine_server.server.conversation.layout import AnswerRegions, Layout, ReasoningMarks
from engine_server.server.conversation.marks import MarkTokens
from engine_server.server.conversation.response_template import (
    END_FIELD,
    is_call,
    read_regions,
)

# Returns the tokens of a text.
Encode = Callable[[str], Sequence[int]]


def with_regions(layout: Layout, added_tokens: Mapping[int, str], encode: Encode) -> Layout:
    """Return a layout with the regions of its response template. Raises ValueError for an invalid one.

    added_tokens: the texts of the tokenizer's added tokens, by id.
    """
    template, channels = layout.data, layout.channels
    assert template is not None
    try:
        with_calls = read_regions(added_tokens, template, channels)
        textual = without_calls_of(template)
        without = channels and replace(channels, calls=False)
        without_calls = AnswerRegions()
        if textual["fields"]:
            without_calls = read_regions(added_tokens, textual, without)
    except ValueError as error:
        raise ValueError(f"invalid response template of {layout.name}: {error}") from None
    return replace(
        layout,
        with_calls=with_calls,
        without_calls=without_calls,
        reasoning=reasoning_marks(encode, template, channels, with_calls.marks),
        call_marks=call_marks(with_calls),
    )


def call_marks(regions: AnswerRegions) -> tuple[Mark, ...]:
    """Return the tokens that begin a call, in the reasoning too."""
    found = {
        first: Mark(regions.marks.plain(first), [regions.marks.token_of_character(first)], True)
        for region in regions.regions
        if region.interrupts and region.open is not None
        for first in region.open.first_characters
    }
    return tuple(found.values())


def reasoning_marks(
    encode: Encode, template: Mapping[str, Any], channels: Channels | None, marks: MarkTokens
) -> ReasoningMarks | None:
    """Return the delimiters of the reasoning of a response template; None if it has none, or patterns."""
    if channels is not None:
        start, end = [channels.reasoning_start], channels.end
    else:
        field = next((template["fields"][key] for key in REASONING_FIELDS if key in template["fields"]), None)
        if field is None or not field.get("close"):
            return None
        start, end = as_list(field.get("open") or []), as_list(field["close"])
    others = [
        text for key, one in template["fields"].items() if key not in REASONING_FIELDS for text in texts(one)
    ]
    return ReasoningMarks(
        tuple(mark_of(encode, text, marks, others) for text in start),
        tuple(mark_of(encode, text, marks, others=None) for text in end),
    )


def mark_of(encode: Encode, text: str, marks: MarkTokens, others: list[str] | None) -> Mark:
    """Return a delimiter of the reasoning.

    others: the delimiters of other regions, for a beginning of which the first token is enough where no other has it.
    """
    token_ids = list(encode(text))
    marked = marks.marked(text)
    exact = not marks.spelled and marks.begins(marked) and len(marked) == 1
    if not exact and not marks.spelled and others is not None and marks.begins(marked):
        first = marks.plain(marked[0])
        if not any(first in other.replace("\\", "") for other in others):
            return Mark(first, [token_ids[0]], True)
    return Mark(text, token_ids[:1] if exact else token_ids, exact)


def texts(field: Mapping[str, Any]) -> list[str]:
    """Return the beginnings of a region, texts or patterns."""
    return as_list(field.get("open") or field.get("open_pattern") or [])


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def without_calls_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response template without its fields of calls."""
    fields = {
        name: field for name, field in template["fields"].items() if not is_call(name) and name != END_FIELD
    }
    return {**template, "fields": fields}
