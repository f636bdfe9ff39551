"""Calls and values of Python: what is read, whole and in pieces, is JSON."""

import json

import pytest
from server.conversation.recorded_answers import reading
from server.conversation.test_reader import calls_of, parse

from engine_server.server.conversation.calls.python_text import python_as_json
from engine_server.server.generation.events import Text

VALUES = [
    ("3", 3),
    ("-1.5e-3", -0.0015),
    ("True", True),
    ("None", None),
    ("null", None),
    ("'it\\'s'", "it's"),
    ('"say \\"x\\""', 'say "x"'),
    ("'say \"x\"'", 'say "x"'),
    ("'a\\nb\\\\c\\x'", "a\nb\\c\\x"),
    ("'line\nend'", "line\nend"),
    ("{'a': [True, None, 'False'], 'b': {}}", {"a": [True, None, "False"], "b": {}}),
    ('{"a": [1, true, null]}', {"a": [1, True, None]}),
    ("'(a=1), [b]'", "(a=1), [b]"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_python_value_is_json(text: str, value: object) -> None:
    assert json.loads(python_as_json(text)) == value


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_argument_has_a_value_of_python(text: str, value: object) -> None:
    answer = f"<|tool_call_start|>[now(), now(a={text}, b_2='x')]<|tool_call_end|>"
    for pieces in ([answer], list(answer)):
        calls = calls_of(parse(reading("lfm2").reader(0), *pieces))
        assert calls == [("now", {}), ("now", {"a": value, "b_2": "x"})]


@pytest.mark.parametrize("body", ["now", "now(", "now(a)", "now(a=1", "1 + 1 = 2", "[now() now]", "now(b=)"])
def test_text_that_is_no_call_is_returned(body: str) -> None:
    answer = f"<|tool_call_start|>{body}<|tool_call_end|>"
    parts = parse(reading("lfm2", whole=True).reader(0), answer)
    assert "".join(part.text for part in parts if isinstance(part, Text)) in (answer, "")
    assert calls_of(parts) == ([] if body != "[now() now]" else [("now", {})])
