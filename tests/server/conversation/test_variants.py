"""Calls that models write beside the form of their templates: read alike, whole and in pieces."""

import pytest
from server.conversation.recorded_answers import CALLS, reading
from server.conversation.test_reader import calls_of, marked, parse, text_of

from engine_server.server.generation.events import Text

ARGUMENTS = '{"city": "Köln \\"Süd\\"\\n", "days": 3}'
FIRST = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
SECOND = '{"name": "now", "arguments": {}}'
CITY, DAYS = '<parameter=city>\nKöln "Süd"\n\n</parameter>', "<parameter=days>\n3\n</parameter>"
BARE = f"<function=get_weather>\n{CITY}\n{DAYS}\n</function>"
QUOTED = (
    "<invoke name='get_weather'>\n"
    """<p name='city' string="true">Köln "Süd"\n</p>\n<p name='days' string="false">3</p>\n</invoke>\n"""
    "<invoke name='now'></invoke>\n</invoke>"
)
BARE_NOW = "<function=now>\n</function>"


def read(name: str, text: str, tokens: bool) -> tuple[list[tuple[str | None, object]], str]:
    """Return the calls and the content of an answer, which its division doesn't change."""
    parts = None
    written = marked(name, text, tokens)
    for pieces in (
        [written],
        list(written),
        [written[place : place + 3] for place in range(0, len(written), 3)],
    ):
        found = parse(reading(name, tokens=tokens).reader(0), *pieces)
        assert parts in (None, found)
        parts = found
    assert parts is not None
    return calls_of(parts), text_of(parts, Text)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", f"{BARE}\n{BARE_NOW}"),
        ("qwen3_coder", f"{BARE}\n</tool_call>\n{BARE_NOW}\n</tool_call>"),
        ("qwen3_coder", f"<tool_call>\n{BARE}\n</tool_call>\n</tool_call>\n{BARE_NOW}"),
        ("hermes", f"<tool_call>{FIRST}</tool_call></tool_call>\n<tool_call>{SECOND}</tool_call>"),
        (
            "hermes",
            f"<tool_call>{FIRST.replace('arguments', 'parameters')}</tool_call><tool_call>{SECOND}</tool_call>",
        ),
        ("tags with types", f"<calls>{QUOTED}</calls>"),
        ("tags with types", QUOTED.replace("name='get_weather'", "name=get_weather")),
        ("llama3", f"{FIRST}; {SECOND}"),
        ("llama3", f"<|python_tag|>{FIRST}; {SECOND}"),
    ],
)
def test_call_beside_the_form_is_read(name: str, text: str, tokens: bool) -> None:
    assert read(name, text, tokens) == (CALLS, "")


def test_call_ends_at_the_token_that_begins_the_next() -> None:
    text = f"<tool_call>\n{FIRST}\n<tool_call>\n{SECOND}\n</tool_call>"
    assert read("hermes", text, tokens=True) == (CALLS, "")


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "Write <function=other>\n</function>, please."),
        ("qwen3_coder", "It ends with </tool_call>, always."),
        ("hermes", "It ends with </tool_call>, always."),
    ],
)
def test_text_that_only_looks_like_a_call_is_content(name: str, text: str, tokens: bool) -> None:
    assert read(name, text, tokens) == ([], text)
