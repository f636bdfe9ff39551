"""Streams of the real model that another engine continues; here the same engine plays both."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from continued_streams import STREAMS, Group, begin, resume
from tiers import tiered

# The fields of events whose strings are parts of the answer.
TEXT_FIELDS = {"content", "text", "delta", "arguments", "partial_json", "name"}


@pytest.mark.parametrize("points", tiered(["one", "all"], "one"))
@pytest.mark.parametrize(
    "name", tiered(STREAMS, "chat", more=["messages", "responses", "completion with log-probabilities"])
)
def test_continued_stream_has_the_tokens_and_the_text_of_the_whole_one(
    server: Any, name: str, points: str
) -> None:
    whole, groups = begin(server, name)
    for count in [len(groups) // 2] if points == "one" else range(1, len(groups)):
        joined = groups[:count] + resume(server, name, whole, groups[:count])
        assert tokens_of(joined) == tokens_of(groups)
        assert "".join(texts_of(joined)) == "".join(texts_of(groups))
        assert joined[-1].report.usage == groups[-1].report.usage


def tokens_of(groups: list[Group]) -> list[int]:
    return [token_id for group in groups for token_id in group.report.token_ids]


def texts_of(groups: list[Group]) -> Iterator[str]:
    """Yield the texts of events in order: an engine that is slow to write joins the texts of several tokens."""
    for group in groups:
        for line in group.events.decode().splitlines():
            if line.startswith("data: {"):
                yield from strings(json.loads(line.removeprefix("data: ")))


def strings(value: Any) -> Iterator[str]:
    """Yield the strings of text fields at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str) and name in TEXT_FIELDS:
                yield item
            else:
                yield from strings(item)
