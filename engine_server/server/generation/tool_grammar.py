"""Grammars of tool calls in a model's own format."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from engine_server.requests.structured_outputs import StructuredOutputsParams


class CallFormat(NamedTuple):
    """A call of one tool: text, the arguments as JSON of a schema, and text."""

    begin: str
    schema: dict[str, Any]
    end: str


def tool_grammar(
    calls: Sequence[CallFormat],
    choice: Literal["auto", "required", "named"],
    separator: str = "",
    parallel: bool = True,
    starts_after: list[int] | None = None,
    trigger: str = "",
) -> StructuredOutputsParams:
    """Return the grammar of an answer with tool calls, each of which is valid.

    calls: one for each tool that may be called. auto: text with any number of calls, where `trigger`, by default the
    text that all calls begin with, starts one. required: at least one call, and nothing else. named: one call, and
    nothing else.
    separator: the text between two calls without text between them. parallel: allow more than one call.
    starts_after: the tokens that end the reasoning.
    """
    tags = [
        {"type": "tag", "begin": one.begin, "content": _content(one.schema), "end": one.end} for one in calls
    ]
    format: dict[str, Any]
    if choice == "auto":
        trigger = trigger or common_prefix([one.begin for one in calls])
        format = {"type": "triggered_tags", "triggers": [trigger], "tags": tags}
    else:
        format = {"type": "tags_with_separator", "separator": separator, "tags": tags, "at_least_one": True}
    format["stop_after_first"] = choice == "named" or not parallel
    tag = msgspec.json.encode({"type": "structural_tag", "format": format}).decode()
    return StructuredOutputsParams(structural_tag=tag, starts_after=starts_after)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def common_prefix(texts: Sequence[str]) -> str:
    """Return the longest text that all texts begin with."""
    first, last = min(texts), max(texts)
    length = next(
        (index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None
    )
    return first[:length]
