"""Streams that another engine continues within thoughts, calls and forms; here the same engine plays both."""

from typing import Any

import pytest
from asked import APIS, CHAT, MESSAGES, PATHS, RESPONSES, body_of
from continued_streams import begin, resume
from local_server import LocalServer

CALL = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
TOOLS = {"paint": {"type": "object", "properties": {"colour": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
ON = {"chat_template_kwargs": {"enable_thinking": True}}
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "thoughts, text and a call": (f"<think>\nHm, STOP.\n</think>\n\nI paint.\n{CALL}", {"tools": TOOLS}),
    "open thoughts and a form": ('Well.\n</think>\n\n{"x": "</think>"}', {"schema": SCHEMA, **ON}),
    "a demanded call": (f"<think>a</think>{CALL}", {"tools": TOOLS, "choice": "required"}),
    "a call within thoughts": (f"I should.{CALL}", {"tools": TOOLS, **ON}),
    "a quoted mark and a stop string": ("No </thin</think>STO, STOP.", {"stop": ["STOP"], **ON}),
}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CASES = [(text, CHAT) for text in TEXTS]
CASES += [("thoughts, text and a call", MESSAGES), ("open thoughts and a form", RESPONSES)]


@pytest.mark.parametrize(
    ("text", "api"),
    [
        pytest.param(text, api, marks=() if (text, api) in CASES else pytest.mark.more)
        for text in TEXTS
        for api in APIS
    ],
)
def test_stream_continued_after_any_token_is_identical(thinking: LocalServer, text: str, api: str) -> None:
    said, fields = TEXTS[text]
    check_continued(thinking, said, api, fields)


def check_continued(server: LocalServer, said: str, api: str, fields: dict[str, Any]) -> None:
    """Check that a stream is the same after each of its tokens, with its usage."""
    body = body_of(api, **fields, **(USAGE if api == CHAT else {}))
    streams = {"one": (PATHS[api], body)}
    with server.saying(said):
        whole, groups = begin(server, "one", streams)
        for count in range(1, len(groups)):
            rest = resume(server, "one", whole, groups[:count], streams=streams)
            assert [group.events for group in rest] == [group.events for group in groups[count:]]
            assert rest[-1].report.usage == groups[-1].report.usage
