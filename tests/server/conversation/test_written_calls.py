"""Calls that are written for earlier turns are read as the same calls, in every format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.conversation.recorded_answers import FORMATS, our_layout, reading
from server.conversation.test_reader import calls_of, marked, parse

from engine_server.server.conversation.calls.written import write_calls

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "items": {"type": "array"},
        "options": {"type": "object"},
    },
}
TOOLS = [{"type": "function", "function": {"name": "write-file2", "parameters": SCHEMA}}]
TEXTS = st.text(st.sampled_from("aß \n'\"\\,:=(){}[]#"), max_size=12).map(str.strip)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b_2"]), inner, max_size=2)
    ),
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "count": st.integers(),
        "items": st.lists(VALUES, max_size=2),
        "options": st.dictionaries(st.sampled_from(["x", "y_z"]), VALUES, max_size=2),
    },
)


@pytest.mark.parametrize("name", [name for name, found in FORMATS.items() if "call" in found])
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=2))
def test_written_calls_are_read(name: str, arguments: list[dict[str, object]]) -> None:
    form = our_layout(name).call
    assert form is not None
    calls = [("write-file2", one) for one in (arguments[:1] if form.at_most_one else arguments)]
    text = marked(name, write_calls(form, calls), tokens=True)
    for pieces in ([text], list(text)):
        assert calls_of(parse(reading(name, tools=TOOLS, tokens=True).reader(0), *pieces)) == calls
