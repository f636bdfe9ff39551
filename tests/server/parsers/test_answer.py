"""Answers in every format, split into parts."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.parsers.recorded_answers import CALLS, FORMATS, RECORDINGS, TOOLS, our_format

from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall
from engine_server.server.parsers.answer import TemplateParser, merge

FORMAT_NAMES = sorted(RECORDINGS)


def parser(name: str, prompt: str = "", **options: bool) -> TemplateParser:
    answer = our_format(name).answer("chatcmpl-1", prompt, TOOLS, **options)
    assert answer is not None
    return answer.parser(0)


def parse(reader: TemplateParser, *pieces: str) -> list[Part]:
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return merge(parts + reader.end())


def text_of(parts: list[Part], kind: type[Text] | type[Reasoning]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def calls_of(parts: list[Part]) -> list[tuple[str | None, Any]]:
    calls: dict[int, list[ToolCall]] = {}
    for part in parts:
        if isinstance(part, ToolCall):
            calls.setdefault(part.index, []).append(part)
    assert list(calls) == list(range(len(calls)))
    return [
        (fragments[0].name, json.loads("".join(part.arguments for part in fragments)))
        for fragments in calls.values()
    ]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_every_format_has_a_recording() -> None:
    assert set(RECORDINGS) == {
        name for name, found in FORMATS.items() if "tool_calls" in found["template"]["fields"]
    }


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_splits_reasoning_content_and_calls(name: str, whole: bool) -> None:
    recording = RECORDINGS[name]
    parts = parse(parser(name, recording.prompt, whole=whole), recording.text)
    assert text_of(parts, Reasoning) == recording.reasoning
    assert text_of(parts, Text) == recording.content
    assert calls_of(parts) == CALLS


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("whole", [False, True])
@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.integers(0, 10_000), max_size=40), end=st.integers(0, 10_000))
def test_parts_do_not_depend_on_the_division_into_deltas(
    name: str, whole: bool, places: list[int], end: int
) -> None:
    recording = RECORDINGS[name]
    text = recording.text[: len(recording.text) - end % len(recording.text)]
    at_once = parse(parser(name, recording.prompt, whole=whole), text)
    assert parse(parser(name, recording.prompt, whole=whole), *cut(text, places)) == at_once
    assert parse(parser(name, recording.prompt, whole=whole), *text) == at_once


def fragments(name: str) -> st.SearchStrategy[str]:
    """Return text made of random characters and of pieces of the format's recording."""
    text = RECORDINGS[name].text
    piece = st.builds(
        lambda start, length: text[start : start + length], st.integers(0, len(text)), st.integers(1, 40)
    )
    return st.lists(piece | st.text(max_size=5) | st.sampled_from(list('{}[]",:<>\\ \n')), max_size=12).map(
        "".join
    )


@pytest.mark.parametrize("name", FORMAT_NAMES)
@settings(max_examples=50, deadline=None)
@given(data=st.data(), whole=st.booleans())
def test_malformed_text_raises_nothing_and_is_split_alike(
    name: str, data: st.DataObject, whole: bool
) -> None:
    text = data.draw(fragments(name))
    at_once = parse(parser(name, whole=whole), text)
    assert parse(parser(name, whole=whole), *text) == at_once
    if whole:
        calls_of(at_once)
