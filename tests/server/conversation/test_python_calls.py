"""Tool calls as Python writes them."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.conversation.recorded_answers import reading
from server.conversation.test_reader import calls_of, parse, text_of

from engine_server.server.conversation.calls.reading.python_text import python_as_json
from engine_server.server.generation.events import Text, ToolCall

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LITERALS = st.recursive(
    SCALARS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def called(arguments: str) -> str:
    return f"<|tool_call_start|>[get_weather({arguments})]<|tool_call_end|>"


@given(value=LITERALS)
def test_literal_is_read_as_python_reads_it(value: Any) -> None:
    assert json.loads(python_as_json(repr(value))) == value


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize(
    "written",
    [
        r"'\x41\101\0b\a\v\'\U0001f642'",
        "'a\\\nb'",
        "'(a=1), [b]'",
        r"'\d \q'",
        "[1, 2, ]",
        "(1, (2,), ())",
        "{'a': [None, True], \"b\": {}}",
        "1_000",
        "0xff",
        ".5",
        "5.",
        "+4",
        "-1e-3",
        "9" * 200,
    ],
)
def test_notations_that_json_lacks_are_read(written: str) -> None:
    expected = json.loads(json.dumps(ast.literal_eval(written)))
    assert json.loads(python_as_json(written)) == expected
    for pieces in ([called(f"x={written}")], list(called(f"x={written}"))):
        parts = parse(reading("lfm2", whole=True).reader(0), *pieces)
        assert calls_of(parts) == [("get_weather", {"x": expected})]


def test_string_may_have_line_ends() -> None:
    assert json.loads(python_as_json("'line\nend'")) == "line\nend"


@pytest.mark.parametrize("text", ["now", "now(", "1 + 1 = 2", "f (", "()"])
def test_text_that_is_no_call_is_content(text: str) -> None:
    answer = f"<|tool_call_start|>{text}<|tool_call_end|>"
    for whole in (False, True):
        assert parse(reading("lfm2", whole=whole).reader(0), *answer) == [Text(answer)]


def test_constants_of_json_are_read() -> None:
    parts = parse(reading("lfm2").reader(0), called("a=true, b=null, c={'d': [false, True, None]}"))
    assert calls_of(parts) == [("get_weather", {"a": True, "b": None, "c": {"d": [False, True, None]}})]


def test_argument_may_have_any_name() -> None:
    parts = parse(reading("lfm2").reader(0), called("from-date=1, $ref = 2, größe=3"))
    assert calls_of(parts) == [("get_weather", {"from-date": 1, "$ref": 2, "größe": 3})]


@pytest.mark.parametrize(
    "arguments",
    [
        "'Paris'",
        "city=",
        "city=Paris",
        "city='Paris",
        "city=f(1)",
        "x=1]",
        "x={1, 2}",
        "x=r'a'",
        "**{}",
        "x=1 2",
    ],
)
def test_malformed_call_is_content_of_a_whole_answer(arguments: str) -> None:
    text = called(arguments)
    for pieces in ([text], list(text)):
        assert parse(reading("lfm2", whole=True).reader(0), *pieces) == [Text(text)]


@pytest.mark.parametrize("text", ["[1] is a source.", "[get_weather] is a tool.", "Call [get_weather()]."])
def test_brackets_are_text_unless_an_answer_begins_with_a_call(text: str) -> None:
    for pieces in ([text], list(text)):
        assert text_of(parse(reading("llama4_python").reader(0), *pieces), Text) == text


def test_calls_need_no_mark_where_an_answer_begins_with_them() -> None:
    parts = parse(reading("llama4_python").reader(0), *"[now(), get_weather(days=1)]<|eot|>")
    assert calls_of(parts) == [("now", {}), ("get_weather", {"days": 1})]


def test_number_of_a_cut_call_is_sent() -> None:
    (part,) = parse(reading("lfm2").reader(0), *"<|tool_call_start|>[get_weather(city='Köln', days=12")
    assert isinstance(part, ToolCall)
    assert part.arguments == '{"city": "Köln", "days": 12'
