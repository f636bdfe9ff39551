"""Delimiters of answers: tokens are marks, the same letters are text, and a call may end the reasoning."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from server.conversation.recorded_answers import RECORDINGS, TOOLS, our_layout, reading
from server.conversation.test_reader import calls_of, marked, parse, text_of

from engine_server.requests.stop_scope import ScopedText
from engine_server.server.conversation.regions import Delimiter
from engine_server.server.conversation.stop_scope import ContentScope
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.events import Reasoning, Text

INSIDE = AnswerStart("<|im_start|>assistant\n<think>\n")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def token(text: str) -> str:
    """Return a mark that is a token, as a character."""
    return marked("hermes", text, tokens=True)


def test_quoted_mark_is_text_where_the_mark_is_a_token() -> None:
    reader = reading("hermes", INSIDE, tokens=True).reader(0)
    parts = parse(reader, f"The tag </think> ends it.{token('</think>')}\n\nParis.")
    assert parts == [Reasoning("The tag </think> ends it."), Text("Paris.")]


def test_quoted_call_is_text_where_its_mark_is_a_token() -> None:
    reader = reading("hermes", tokens=True).reader(0)
    assert parse(reader, f"Write {CALL}.") == [Text(f"Write {CALL}.")]


def test_call_of_an_offered_tool_ends_open_thoughts() -> None:
    reader = reading("hermes", INSIDE, tokens=True).reader(0)
    parts = parse(reader, f"I'll look.\n{token(CALL)}")
    assert text_of(parts, Reasoning) == "I'll look."
    assert calls_of(parts) == [("now", {})]


@pytest.mark.parametrize(
    "call", [CALL.replace("now", "unknown"), "<tool_call> is the mark", CALL.replace("{", "[")]
)
def test_other_call_within_thoughts_is_thought(call: str) -> None:
    for pieces in ([token(call)], list(token(call))):
        reader = reading("hermes", INSIDE, tokens=True).reader(0)
        parts = parse(reader, "Well, ", *pieces, f"!{token('</think>')}Paris.")
        assert parts == [Reasoning(f"Well, {call}!"), Text("Paris.")]


def test_call_whose_marks_are_text_is_none_within_thoughts() -> None:
    reader = reading("hermes", INSIDE).reader(0)
    parts = parse(reader, f"Like {CALL}?</think>Paris.")
    assert parts == [Reasoning(f"Like {CALL}?"), Text("Paris.")]


def test_text_without_a_header_is_content() -> None:
    reader = reading("gpt_oss", AnswerStart("<|start|>assistant"), tokens=True).reader(0)
    assert parse(reader, "Hello.") == [Text("Hello.")]


def test_part_for_a_tool_that_calls_none_is_content_of_a_whole_answer() -> None:
    text = marked("muse_glimmer", " to=now<|message|>Hm.<|eom|>", tokens=True)
    reader = reading("muse_glimmer", AnswerStart("<|start|>assistant"), tokens=True, whole=True).reader(0)
    assert parse(reader, text) == [Text(" to=now<|message|>Hm.<|eom|>")]


@pytest.mark.parametrize(
    ("pattern", "literals", "expected"),
    [
        ("", ("</think>", "[/THINK]"), {"<", "["}),
        (r"<tool_call>\s*<function=(?P<name>[^>]{1,9})>", None, {"<"}),
        (r"<\|tool_call>call:", None, {"<"}),
        (r"<a>|b", None, None),
        (r"<?a", None, None),
        (r"(?:^\s*|<a>)(?=\{)", None, None),
        (r"\[TOOL_CALLS\]", None, None),
        (r"(?=.)", None, None),
    ],
)
def test_delimiter_names_its_first_character_where_it_is_certain(
    pattern: str, literals: tuple[str, ...] | None, expected: set[str] | None
) -> None:
    assert Delimiter(regex.compile(pattern), literals).certain_beginnings == expected


def test_thoughts_full_of_marks_take_bounded_memory() -> None:
    reader = reading("hermes", INSIDE, tokens=True).reader(0)
    for _ in range(2_000):
        reader.feed(token("<tool_call>") + "x<tool_call></thin")
        assert reader.retained_characters < 6_000


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", sorted(RECORDINGS))
@given(places=st.lists(st.integers(0, 2_000), max_size=10))
def test_scope_of_stop_strings_has_all_text_in_order(name: str, tokens: bool, places: list[int]) -> None:
    text = marked(name, RECORDINGS[name].text, tokens)
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    scope = ContentScope(reading(name, RECORDINGS[name].start, tokens=tokens))
    pieces = [
        piece for start, end in zip([0, *ends], ends, strict=False) for piece in scope.feed(text[start:end])
    ]
    pieces += scope.end()
    assert "".join(piece.text for piece in pieces) == text
    content = "".join(piece.text for piece in pieces if piece.kind == "content")
    assert RECORDINGS[name].content.split("\n")[0] in content
    assert "need the weather" not in content and "Köln" not in content


def test_mark_in_the_scope_has_its_text() -> None:
    scope = ContentScope(reading("hermes", INSIDE, tokens=True))
    end = token("</think>")
    assert scope.feed(f"Well.{end}Paris") == [
        ScopedText("Well.", "other"),
        ScopedText(end, "mark", "</think>"),
        ScopedText("Paris", "content"),
    ]


def test_every_tool_of_the_recordings_is_offered() -> None:
    assert [tool["function"]["name"] for tool in TOOLS] == ["get_weather", "now"]
    assert our_layout("hermes", tokens=True).call_marks


@pytest.mark.parametrize("text", ['{"x": "<think>a</think>"}', '{"x": "' + CALL.replace('"', "'") + '"}'])
def test_marks_within_a_demanded_form_are_text(text: str) -> None:
    for pieces in ([text], list(text), [f"<think>Well.</think>{text}"]):
        reader = reading("hermes", content_is_last=True).reader(0)
        assert text_of(parse(reader, *pieces), Text) == text


def test_opening_of_the_turn_is_no_content() -> None:
    reader = reading("hermes", AnswerStart("<|im_start|>assistant\n"), content_is_last=True).reader(0)
    assert calls_of(parse(reader, CALL)) == [("now", {})]


def test_reasoning_that_the_prompt_opens_precedes_a_demanded_form() -> None:
    start = AnswerStart("<|im_start|>assistant\n<think>\n")
    reader = reading("hermes", start, content_is_last=True).reader(0)
    assert parse(reader, "Well.</think>\n", "{}") == [Reasoning("Well."), Text("{}")]
