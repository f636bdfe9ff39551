"""Answers in every format, split into parts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.conversation.recorded_answers import CALLS, FORMATS, RECORDINGS, our_layout, reading
from tiers import tiered

from engine_server.server.conversation.reader import AnswerReader
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall
from engine_server.server.generation.parts import join_parts

FORMAT_NAMES = sorted(RECORDINGS)
# Of calls as JSON, with tags for parameters, with quotes of their own, and as Python.
by_format = pytest.mark.parametrize(
    "name", tiered(FORMAT_NAMES, "hermes", "qwen3_coder", "gemma4", "lfm2", more=FORMAT_NAMES)
)


def parser(name: str, start: AnswerStart = NO_START, **options: Any) -> AnswerReader:
    return reading(name, start, **options).reader(0)


def parse(reader: AnswerReader, *pieces: str) -> list[Part]:
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return join_parts(parts + reader.end())


def marked(name: str, text: str, tokens: bool) -> str:
    """Return an answer's text, in which tokens that are marks are characters."""
    return our_layout(name, tokens).with_calls.marks.marked(text)


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
        name
        for name, found in FORMATS.items()
        if "channels" in found or "tool_calls" in found["template"]["fields"]
    }


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_splits_reasoning_content_and_calls(name: str, whole: bool, tokens: bool) -> None:
    recording = RECORDINGS[name]
    reader = parser(name, recording.start, whole=whole, tokens=tokens)
    parts = parse(reader, marked(name, recording.text, tokens))
    assert text_of(parts, Reasoning) == recording.reasoning
    assert text_of(parts, Text) == recording.content
    assert calls_of(parts) == CALLS


@by_format
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@given(places=st.lists(st.integers(0, 10_000), max_size=40), end=st.integers(0, 10_000))
def test_parts_do_not_depend_on_the_division_into_deltas(
    name: str, whole: bool, tokens: bool, places: list[int], end: int
) -> None:
    start, whole_text = RECORDINGS[name].start, marked(name, RECORDINGS[name].text, tokens)
    text = whole_text[: len(whole_text) - end % len(whole_text)]
    options = {"whole": whole, "tokens": tokens}
    at_once = parse(parser(name, start, **options), text)
    assert parse(parser(name, start, **options), *cut(text, places)) == at_once
    assert parse(parser(name, start, **options), *text) == at_once


def fragments(name: str) -> st.SearchStrategy[str]:
    """Return text made of random characters and of pieces of the format's recording."""
    text = RECORDINGS[name].text
    piece = st.builds(
        lambda start, length: text[start : start + length], st.integers(0, len(text)), st.integers(1, 40)
    )
    return st.lists(piece | st.text(max_size=5) | st.sampled_from(list('{}[]",:<>\\ \n')), max_size=12).map(
        "".join
    )


@by_format
@given(data=st.data(), whole=st.booleans())
def test_malformed_text_raises_nothing_and_is_split_alike(
    name: str, data: st.DataObject, whole: bool
) -> None:
    text = data.draw(fragments(name))
    at_once = parse(parser(name, whole=whole), text)
    assert parse(parser(name, whole=whole), *text) == at_once
    if whole:
        calls_of(at_once)


def hermes_call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


@by_format
@pytest.mark.parametrize("tokens", [False, True])
@given(data=st.data(), places=st.lists(st.integers(0, 10_000), max_size=60), recorded=st.booleans())
def test_text_that_passes_is_the_part_that_is_read_from_it(
    name: str, tokens: bool, data: st.DataObject, places: list[int], recorded: bool
) -> None:
    text = RECORDINGS[name].text if recorded else data.draw(fragments(name))
    start = RECORDINGS[name].start if recorded else NO_START
    passing, reading = parser(name, start, tokens=tokens), parser(name, start, tokens=tokens)
    for piece in filter(None, cut(marked(name, text, tokens), places)):
        kind = passing.plain_kind
        passes = kind is not None and passing.passes(piece)
        assert ([kind(piece)] if kind and passes else passing.feed(piece)) == reading.feed(piece)
    assert passing.end() == reading.end()


LONG = "line of code\n" * 1400
LONG_CALLS = {
    "hermes": (hermes_call(json.dumps({"city": LONG})), json.dumps({"city": LONG})),
    "qwen3_coder": (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{LONG}\n</parameter>\n</function>\n</tool_call>",
        json.dumps({"city": LONG}),
    ),
    "gemma4": (
        f'<|tool_call>call:get_weather{{city:<|"|>{LONG}<|"|>}}<tool_call|>',
        json.dumps({"city": LONG}, separators=(",", ":")),
    ),
    "lfm2": (
        f"<|tool_call_start|>[get_weather(city={json.dumps(LONG)})]<|tool_call_end|>",
        json.dumps({"city": LONG}),
    ),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_long_argument_is_streamed_while_it_is_generated(name: str) -> None:
    text, arguments = LONG_CALLS[name]
    reader = parser(name)
    sent, behind = "", []
    for start in range(0, len(text), 4):
        for part in reader.feed(text[start : start + 4]):
            assert isinstance(part, ToolCall)
            sent += part.arguments
        behind.append(start + 4 - len(sent))
    assert sent + "".join(part.arguments for part in reader.end() if isinstance(part, ToolCall)) == arguments
    assert max(behind) < 120, "only the markup and the name are not sent"


def test_a_format_with_quotes_of_its_own_takes_those_of_json() -> None:
    text = '<|tool_call>call:get_weather{city:"Köln \\"Süd\\"",days:3}<tool_call|>'

    (call,) = parse(parser("gemma4"), *text)

    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"city": 'Köln "Süd"', "days": 3}


@pytest.mark.parametrize(
    "written",
    [
        "{from-date:1,$ref:[1,-2.5e+3],größe:{a.b:true}}",
        '{<|"|>from-date<|"|>:1,"$ref":[1,-2.5e+3],größe:{a.b:true}}',
    ],
)
def test_bare_keys_may_have_any_characters_but_those_of_json(written: str) -> None:
    for pieces in ([written], list(written)):
        parts = parse(parser("gemma4"), "<|tool_call>call:now", *pieces, "<tool_call|>")
        assert calls_of(parts) == [("now", {"from-date": 1, "$ref": [1, -2500.0], "größe": {"a.b": True}})]


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_text_of_an_unclosed_region_is_not_kept(name: str) -> None:
    recording = RECORDINGS[name]
    reader = parser(name, recording.start)
    opening = recording.text[: recording.text.index("days")]
    reader.feed(opening)
    for _ in range(5_000):
        reader.feed("abcd")
    assert reader.retained_characters < 10_000


BROKEN_CALLS = {
    "cut": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
    "not JSON": hermes_call('{"city": Paris}'),
    "no object": hermes_call('["Paris"]'),
    "no name": '<tool_call>\n{"arguments": {}}\n</tool_call>',
    "no arguments": '<tool_call>\n{"name": "now"}\n</tool_call>',
    "no call": "<tool_call>\nget_weather(Paris)\n</tool_call>",
}


@pytest.mark.parametrize("case", BROKEN_CALLS)
def test_malformed_call_is_content_of_a_whole_answer(case: str) -> None:
    text = f"Let me see.\n{BROKEN_CALLS[case]}"
    assert parse(parser("hermes", whole=True), text) == [Text(text)]


def test_text_after_a_malformed_call_is_content_and_later_calls_are_calls() -> None:
    text = f"{BROKEN_CALLS['no call']}\nOh.\n{hermes_call('{}')}"
    for whole in (False, True):
        parts = parse(parser("hermes", whole=whole), text)
        assert text_of(parts, Text) == f"{BROKEN_CALLS['no call']}\nOh."
        assert calls_of(parts) == [("get_weather", {})]


def test_cut_call_of_a_stream_keeps_the_fragments_that_were_sent() -> None:
    (part,) = parse(parser("hermes"), BROKEN_CALLS["cut"])
    assert isinstance(part, ToolCall)
    assert (part.name, part.arguments) == ("get_weather", '{"city": "Par')


def test_call_is_complete_although_its_closing_delimiter_is_cut() -> None:
    text = hermes_call("{}")
    for end in range(1, len("\n</tool_call>") + 1):
        for whole in (False, True):
            assert calls_of(parse(parser("hermes", whole=whole), text[:-end])) == [("get_weather", {})]


@pytest.mark.parametrize("whole", [False, True])
def test_only_the_first_call_is_kept_where_one_is_allowed(whole: bool) -> None:
    for name in FORMAT_NAMES:
        parts = parse(parser(name, RECORDINGS[name].start, whole=whole, one_call=True), RECORDINGS[name].text)
        assert calls_of(parts) == CALLS[:1]


def test_reasoning_is_left_out_on_request() -> None:
    parts = parse(parser("hermes", include_reasoning=False), RECORDINGS["hermes"].text)
    assert text_of(parts, Reasoning) == ""
    assert text_of(parts, Text) == RECORDINGS["hermes"].content


def test_calls_are_text_without_tools() -> None:
    text = hermes_call("{}")
    assert parse(parser("hermes", tools=None), text) == [Text(text)]


def test_prompt_that_closed_the_reasoning_starts_with_content() -> None:
    start = AnswerStart("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert parse(parser("hermes", start), "Hello") == [Text("Hello")]


def test_ids_of_calls_depend_on_answer_choice_and_index_alone() -> None:
    text = RECORDINGS["hermes"].text

    def ids(answer_id: str, choice: int) -> list[str]:
        reader = reading("hermes", answer_id=answer_id).reader(choice)
        return [part.id for part in parse(reader, *text) if isinstance(part, ToolCall) and part.id]

    assert ids("chatcmpl-1", 0) == ids("chatcmpl-1", 0)
    assert len({*ids("chatcmpl-1", 0), *ids("chatcmpl-1", 1), *ids("chatcmpl-2", 0)}) == 6


def test_ids_have_the_length_that_the_template_of_mistral_demands() -> None:
    parts = parse(parser("mistral"), RECORDINGS["mistral"].text)
    ids = [part.id for part in parts if isinstance(part, ToolCall)]
    assert all(one is not None and len(one) == 9 and one.isalnum() for one in ids)
