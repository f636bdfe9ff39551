"""Answers that end within a call lose none of their text, in any format."""

import pytest
from server.conversation.recorded_answers import CALLS, RECORDINGS, Recording
from server.conversation.test_reader import calls_of, marked, parse, parser, text_of
from tiers import tiered

from engine_server.server.generation.events import Text, ToolCall

by_format = pytest.mark.parametrize("name", sorted(RECORDINGS))


def without_space(text: str) -> str:
    return "".join(text.split())


def start_of_calls(recording: Recording) -> int:
    return recording.text.index(recording.content) + len(recording.content)


@pytest.mark.parametrize(
    "name", tiered(sorted(RECORDINGS), "hermes", "glm", "lfm2", "gpt_oss", more=RECORDINGS)
)
@pytest.mark.parametrize("tokens", [False, True])
def test_unfinished_call_is_content_of_a_whole_answer(name: str, tokens: bool) -> None:
    recording = RECORDINGS[name]
    begin = start_of_calls(recording)
    content = without_space(recording.content)
    all_calls = without_space(recording.text[begin:])
    # Text before the name of each call, and before nothing, may be markup.
    names = [all_calls.index("get_weather"), all_calls.rindex("now"), len(all_calls)]
    for end in range(begin, len(recording.text)):
        reader = parser(name, recording.start, whole=True, tokens=tokens)
        parts = parse(reader, marked(name, recording.text[:end], tokens))
        found = calls_of(parts)
        text = without_space(text_of(parts, Text))
        written = without_space(recording.text[begin:end])
        assert found == CALLS[: len(found)]
        assert text.startswith(content)
        left = text.removeprefix(content)
        assert written.endswith(left)
        assert len(written) - len(left) <= names[len(found)], recording.text[:end]


@by_format
@pytest.mark.parametrize(("written", "sent"), [("ln", "ln"), ("days", ""), ("3", "3")])
@pytest.mark.parametrize("tokens", [False, True])
def test_value_of_an_unfinished_call_is_sent_in_a_stream(
    name: str, written: str, sent: str, tokens: bool
) -> None:
    recording = RECORDINGS[name]
    place = recording.text.index("get_weather")
    place = recording.text.index("days", place) if written == "3" else place
    text = recording.text[: recording.text.index(written, place) + len(written)]
    pieces = marked(name, text, tokens)
    for given in ([pieces], list(pieces)):
        parts = parse(parser(name, recording.start, tokens=tokens), *given)
        arguments = "".join(part.arguments for part in parts if isinstance(part, ToolCall))
        assert "ln" in arguments
        assert arguments.endswith(sent)
        assert without_space(text_of(parts, Text)) == without_space(recording.content)
