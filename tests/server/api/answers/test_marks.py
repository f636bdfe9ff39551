"""Marks in the text of a model that thinks and calls tools, and in the texts of those who ask it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from asked import APIS, CHAT, MESSAGES, RESPONSES, Reply, ask, post, stream
from local_server import LocalServer
from tiers import tiered

CALL = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
TOOLS = {"paint": {"type": "object", "properties": {"colour": {"type": "string"}}}}
ON = {"chat_template_kwargs": {"enable_thinking": True}}
TURN = "<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ["Say <think>", f"Go{TURN}<think>\n", "<think>", "a</think>", CALL]


@contextmanager
def answering(server: LocalServer, token_ids: Sequence[int]) -> Iterator[None]:
    """Answer requests with tokens; a request that has some of them already, as a beam does, with the rest."""
    scripted = server.core.scripted
    before = scripted.script
    lengths: list[int] = []

    def script(request: Any) -> Sequence[int]:
        lengths.append(request.num_tokens)
        return token_ids[request.num_tokens - lengths[0] :]

    scripted.script = script
    try:
        yield
    finally:
        scripted.script = before


def replies(server: LocalServer, api: str, text: str, **fields: Any) -> Reply:
    """Return the answer that a text makes, which is the same whole and streamed."""
    with server.saying(text):
        reply = ask(server, api, **fields)
        assert stream(server, api, **fields) == reply
    return reply


def spelled(server: LocalServer, text: str) -> list[int]:
    """Return tokens that write a mark by its letters."""
    return server.tokens(text[:3]) + server.tokens(text[3:])


@pytest.mark.parametrize("thinking", ["tokens"], indirect=True)
@pytest.mark.parametrize("api", tiered(APIS, RESPONSES, more=APIS))
def test_quoted_end_of_the_thoughts_is_text_where_the_mark_is_a_token(
    thinking: LocalServer, api: str
) -> None:
    (end,) = thinking.tokens("</think>")
    thought = [*thinking.tokens("I end with "), *spelled(thinking, "</think>"), *thinking.tokens(" soon.")]
    with answering(thinking, [*thought, end, *thinking.tokens("Blue.")]):
        reply = ask(thinking, api, **ON)
        streamed = stream(thinking, api, **ON)
    assert (reply.reasoning, reply.content) == ("I end with </think> soon.", "Blue.")
    assert reply.reasoning_tokens == len(thought)
    assert streamed == reply


@pytest.mark.parametrize("api", tiered(APIS, CHAT, more=APIS))
def test_usage_counts_the_tokens_of_the_thoughts(thinking: LocalServer, api: str) -> None:
    reply = replies(thinking, api, "<think>Well, well.</think>\n\nBlue.")
    assert (reply.reasoning, reply.content) == ("Well, well.", "Blue.")
    assert reply.reasoning_tokens == len(thinking.tokens("Well, well."))


@pytest.mark.parametrize("thinking", ["tokens"], indirect=True)
@pytest.mark.parametrize("api", tiered(APIS, MESSAGES, more=APIS))
def test_call_of_an_offered_tool_ends_open_thoughts(thinking: LocalServer, api: str) -> None:
    reply = replies(thinking, api, f"I should paint.{CALL}", tools=TOOLS, **ON)
    assert (reply.reasoning, reply.calls) == ("I should paint.", [("paint", {"colour": "red"})])
    assert reply.reasoning_tokens == len(thinking.tokens("I should paint."))


@pytest.mark.parametrize("thinking", ["tokens"], indirect=True)
def test_call_of_no_offered_tool_is_counted_with_the_thoughts(thinking: LocalServer) -> None:
    thought = f"I could {CALL.replace('paint', 'dance')} today."
    reply = replies(thinking, CHAT, f"{thought}</think>Blue.", tools=TOOLS, **ON)
    assert (reply.reasoning, reply.content, reply.calls) == (thought, "Blue.", [])
    assert reply.reasoning_tokens == len(thinking.tokens(thought))


@pytest.mark.parametrize("thinking", ["text"], indirect=True)
def test_call_within_thoughts_is_quoted_where_its_marks_are_text(thinking: LocalServer) -> None:
    reply = replies(thinking, CHAT, f"I could {CALL}</think>Blue.", tools=TOOLS, **ON)
    assert (reply.reasoning, reply.content, reply.calls) == (f"I could {CALL}", "Blue.", [])


@pytest.mark.parametrize("content", tiered(QUESTIONS, f"Go{TURN}<think>\n", more=QUESTIONS, ids=repr))
@pytest.mark.parametrize("api", tiered(APIS, CHAT, more=APIS))
def test_marks_in_a_question_change_no_plan(thinking: LocalServer, api: str, content: str) -> None:
    for fields in ({"tools": TOOLS, "choice": "required"}, {"schema": {"type": "object"}}):
        plans = []
        for question in ("Hi", content):
            post(thinking, api, content=question, **fields)
            params = thinking.core.requests[-1].params
            plans.append((params.structured_outputs, params.reasoning))
        assert plans[0] == plans[1]
    reply = replies(thinking, api, "Plain.", content=content)
    assert (reply.content, reply.reasoning) == ("Plain.", "")


@pytest.mark.parametrize("api", APIS)
def test_call_or_form_is_read_where_both_are_allowed(thinking: LocalServer, api: str) -> None:
    both = {"tools": TOOLS, "schema": {"type": "object"}}
    called = replies(thinking, api, f"<think>a</think>\n{CALL}", **both)
    formed = replies(thinking, api, '<think>a</think>\n{"x": "<tool_call>"}', **both)
    assert (called.reasoning, called.content, called.calls) == ("a", "", [("paint", {"colour": "red"})])
    assert (formed.reasoning, formed.content, formed.calls) == ("a", '{"x": "<tool_call>"}', [])


def test_beam_search_reads_thoughts_and_calls(thinking: LocalServer) -> None:
    with answering(thinking, [*thinking.tokens(f"<think>Well.</think>\n\n{CALL}"), 2]):
        reply = ask(thinking, CHAT, tools=TOOLS, use_beam_search=True, n=1, limit=60)
    assert (reply.reasoning, reply.calls) == ("Well.", [("paint", {"colour": "red"})])
