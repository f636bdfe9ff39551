"""Marks of calls within open thoughts: the parts of an answer and the count of its reasoning agree about them."""

import pytest
from server.conversation.recorded_answers import FORMATS, TOOLS, marks_of, our_layout
from small_tokenizers import byte_level, vocabulary_of

from engine_server.requests.sampling_params import SamplingParams
from engine_server.server.conversation.plan import plan_conversation
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.events import Reasoning
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse

THOUGHT = "I think."
OLDER = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
# Formats with reasoning whose calls begin with a token.
LAYOUTS = {name: our_layout(name, tokens=True) for name in FORMATS}
NAMES = [name for name, layout in LAYOUTS.items() if layout.call_marks and layout.reasoning]
PROSE = " is a mark, with which I call get_weather(x) and now()."


def has_one_mark(name: str) -> bool:
    """Return False for calls that begin with a mark twice, of which the count of the reasoning takes the second."""
    layout = our_layout(name, tokens=True)
    assert layout.call is not None
    return beginning(name).count(layout.call_marks[0].text) == 1


def beginning(name: str) -> str:
    """Return the text of a format's call up to the name of its tool."""
    call = our_layout(name).call
    assert call is not None
    return (call.before + call.beginning).replace("INDEX", "0")


def call_of(name: str, tool: str) -> str:
    """Return a call as a model of a format writes it, without arguments that are tags."""
    call = our_layout(name).call
    assert call is not None
    arguments = "" if call.tag or call.keywords else "{}"
    middle = call.middle.replace("INDEX", "0")
    return f"{beginning(name)}{tool}{middle}{arguments}{call.end}{call.after}"


def counts(name: str, text: str) -> list[tuple[int, int]]:
    """Return the tokens that are counted as reasoning, and those in the parts of it, at each end of an answer.

    White space at the end of a part is in none, and so the answers are those that end with other characters.
    """
    layout = our_layout(name, tokens=True)
    assert layout.reasoning is not None
    backend = byte_level(tuple(marks_of(name)))
    vocabulary = vocabulary_of(backend).tokens
    start = AnswerStart(layout.reasoning.start[0].text)
    style = AnswerStyle(ToolUse(TOOLS))
    answer = plan_conversation(layout, start, style, SamplingParams(), "answer", False, vocabulary).answer
    assert answer is not None
    token_ids = backend.encode(text, add_special_tokens=False).ids
    found = []
    for end in range(1, len(token_ids) + 1):
        reader, written = answer.reader(0), b"".join(vocabulary[one] for one in token_ids[:end]).decode()
        counted = sum(reader.count_reasoning([token_id]) for token_id in token_ids[:end])
        parts = reader.feed(layout.with_calls.marks.marked(written)) + reader.end()
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        if not written[-1].isspace():
            found.append((counted, len(backend.encode(reasoning, add_special_tokens=False).ids)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_mark_that_calls_no_offered_tool_is_counted_as_a_thought(name: str) -> None:
    layout = our_layout(name, tokens=True)
    assert layout.reasoning is not None
    mark, end = layout.call_marks[0].text, layout.reasoning.end[0].text
    for thought in (
        call_of(name, "forecast"),
        mark + PROSE,
        mark,
        f"{mark}{mark}",
        f"{beginning(name)}nowhere.",
    ):
        for counted, in_parts in counts(name, f"{THOUGHT}{thought}"):
            # Of a name at the answer's end it is open whether it goes on.
            assert counted == in_parts or name == "glm", thought
        *_, (whole, in_parts) = counts(name, f"{THOUGHT}{thought}{end}Hi.")
        assert whole == in_parts == counts(name, f"{THOUGHT}{thought}")[-1][0]


@pytest.mark.parametrize("name", list(filter(has_one_mark, NAMES)))
def test_call_of_an_offered_tool_ends_the_count_at_its_mark(name: str) -> None:
    for text in (call_of(name, "now"), *([OLDER] if name == "deepseek" else [])):
        *_, (counted, in_parts) = counts(name, f"{THOUGHT}{text}")
        assert counted == in_parts == counts(name, THOUGHT)[-1][0]
    mark = our_layout(name, tokens=True).call_marks[0].text
    twice = counts(name, f"{THOUGHT}{mark}{call_of(name, 'now')}")[-1]
    assert twice[0] == twice[1] == counts(name, THOUGHT + mark)[-1][0]
