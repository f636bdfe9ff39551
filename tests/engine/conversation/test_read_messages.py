"""Messages of `LLM.chat`: what is wrong with them is said with their place."""

from typing import Any

import pytest

from engine_server.engine.conversation.read_messages import read_tools, read_turns
from engine_server.engine.conversation.turns import Call, Result, Text, Thinking, Turn
from engine_server.requests.errors import InvalidRequestError


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_message_becomes_a_turn_of_ordered_parts() -> None:
    messages = [
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}], "name": "n"},
        {
            "role": "assistant",
            "content": None,
            "thinking": "c",
            "tool_calls": [call('{"x": 1}'), call({"x": 2})],
        },
        {"role": "tool", "tool_call_id": "1", "content": "d"},
    ]
    assert read_turns(messages, "messages", False) == (
        Turn("user", (Text("a"), Text("b")), "n", "messages.0"),
        Turn(
            "assistant",
            (Thinking("c"), Call("1", "f", {"x": 1}), Call("1", "f", {"x": 2})),
            path="messages.1",
        ),
        Turn("tool", (Result("1", (Text("d"),)),), path="messages.2"),
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("a", "messages.1 is 'a'; it takes an object with a role"),
        ({"content": "a"}, "messages.1 is .*; it takes an object with a role"),
        ({"role": "user"}, "messages.1.content is None; it takes a string or a list of parts"),
        ({"role": "user", "content": 1}, "messages.1.content is 1; it takes a string or a list of parts"),
        ({"role": "user", "content": [1]}, "messages.1.content.0 is 1; it takes text parts"),
        ({"role": "user", "content": "a", "name": 1}, "messages.1.name is 1; it takes a string"),
        (
            {"role": "user", "content": "a", "tool_calls": [call("{}")]},
            "messages.1.tool_calls is .* role assistant",
        ),
        (
            {"role": "assistant", "tool_calls": [{}]},
            r"messages.1.tool_calls.0 is \{\}; it takes a function with",
        ),
        (
            {"role": "assistant", "tool_calls": [call([])]},
            "messages.1.tool_calls.0 is .*; it takes a function with",
        ),
    ],
)
def test_wrong_message_is_named(message: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read_turns([{"role": "user", "content": "a"}, message], "messages", False)


def test_conversation_without_messages_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\.1 has no message; it takes at least one"):
        read_turns([], "messages.1", False)


@pytest.mark.parametrize("tool", [{"name": "f"}, {"type": "function", "function": {}}, len])
def test_wrong_tool_is_named(tool: Any) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"tools\.0 is .*; it takes an object with the type function"
    ):
        read_tools([tool])
