"""Stop strings of a model that thinks and calls tools: they are matched in content, and with marks as a whole."""

from typing import Any

import pytest
from asked import APIS, CHAT, MESSAGES, RESPONSES, Reply, ask, stream
from local_server import LocalServer
from tiers import tiered

CALL = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
TOOLS = {"paint": {"type": "object", "properties": {"colour": {"type": "string"}}}}
THOUGHT = "<think>\nSay STOP here.\n</think>\n\n"
ON = {"chat_template_kwargs": {"enable_thinking": True}}


def ended(api: str, stop: str) -> tuple[str, str | None]:
    """Return the end of an answer at a stop string as an API reports it."""
    return {CHAT: ("stop", stop), MESSAGES: ("stop_sequence", stop), RESPONSES: ("completed", None)}[api]


def replies(server: LocalServer, api: str, text: str, **fields: Any) -> Reply:
    """Return the answer that a text makes, which is the same whole and streamed."""
    with server.saying(text):
        reply = ask(server, api, **fields)
        assert stream(server, api, **fields) == reply
    return reply


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("api", tiered(APIS, CHAT, MESSAGES, more=[RESPONSES]))
def test_stop_string_in_the_thoughts_is_text_and_in_the_content_ends_the_answer(
    thinking: LocalServer, api: str, include: bool
) -> None:
    fields = {"stop": ["STOP"], "include_stop_str_in_output": include}
    reply = replies(thinking, api, f"{THOUGHT}The sky STOP is blue.", **fields)
    assert (reply.reasoning, reply.content) == ("Say STOP here.", "The sky STOP" if include else "The sky ")
    assert reply.ended == ended(api, "STOP")


@pytest.mark.parametrize("api", tiered(APIS, CHAT, more=APIS))
def test_stop_string_in_a_call_is_text(thinking: LocalServer, api: str) -> None:
    reply = replies(thinking, api, f"{THOUGHT}I call.{CALL}", tools=TOOLS, stop=["red", "name", "}"])
    assert (reply.content, reply.calls) == ("I call.", [("paint", {"colour": "red"})])


@pytest.mark.parametrize("stop", tiered(["</think>", "</th", "think>"], "</think>", more=["</th", "think>"]))
@pytest.mark.parametrize("include", tiered([False, True], False, more=[True]))
@pytest.mark.parametrize("api", APIS)
def test_stop_string_that_is_the_end_of_the_thoughts_cuts_the_answer_there(
    thinking: LocalServer, api: str, include: bool, stop: str
) -> None:
    fields = {"stop": [stop], "include_stop_str_in_output": include, **ON}
    reply = replies(thinking, api, "Say STOP here.\n</think>\n\nBlue.", **fields)
    assert (reply.reasoning, reply.content) == ("Say STOP here.", "")
    assert reply.ended == ended(api, stop)
    assert reply.reasoning_tokens == len(thinking.tokens("Say STOP here.\n"))


@pytest.mark.parametrize("include", tiered([False, True], False, more=[True]))
@pytest.mark.parametrize("api", tiered(APIS, CHAT, MESSAGES, more=[RESPONSES]))
def test_stop_string_that_begins_a_call_ends_the_answer_before_it(
    thinking: LocalServer, api: str, include: bool
) -> None:
    fields = {"tools": TOOLS, "stop": ["<tool_call>"], "include_stop_str_in_output": include}
    reply = replies(thinking, api, f"{THOUGHT}I call STO{CALL}", **fields)
    assert reply.calls == []
    assert reply.content == "I call STO" + "<tool_call>" * include
    assert reply.ended == ended(api, "<tool_call>")


def test_completion_without_a_conversation_matches_stop_strings_in_all_text(thinking: LocalServer) -> None:
    body = {"model": "smollm2", "prompt": "Hi", "max_tokens": 40}
    with thinking.saying(f"{THOUGHT}Blue.{CALL}"):
        stopped = [
            thinking.post("/v1/completions", body | {"stop": stop}).json["choices"][0]["text"]
            for stop in ("STOP", "Blue", "name")
        ]
    assert [text.rpartition("\n")[2] for text in stopped] == ["Say ", "", '{"']
