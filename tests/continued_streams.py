"""Streams that an engine begins and another one continues, as the router asks for them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from api_client import Answer

from engine_server.contract.wire import headers
from engine_server.contract.wire.continuation import REPORT_PREFIX, TokenReport

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
REPORT = {headers.REPORT_TOKENS: "1"}
QUESTION = [{"role": "user", "content": "Name three colours."}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
# Paths and bodies, by a name.
Streams = Mapping[str, tuple[str, dict[str, Any]]]
# Few tokens are likely, so that rounding, which differs between a prompt and its continuation,
# changes no choice of a model.
STREAMS: Streams = {
    "chat": (CHAT, {"messages": QUESTION, "max_tokens": 8, "top_k": 20}),
    "chat with a stop string, usage and token ids": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 10,
            "temperature": 0,
            "stop": ["blue, z", " q"],
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        },
    ),
    "chat with a schema": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 12,
            "top_k": 20,
            "response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}},
        },
    ),
    "chat with a tool call": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 40,
            "top_k": 20,
            "tools": [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}],
            "tool_choice": "required",
        },
    ),
    "messages": (MESSAGES, {"messages": QUESTION, "max_tokens": 6, "top_k": 20}),
    "messages with a tool call": (
        MESSAGES,
        {
            "messages": QUESTION,
            "max_tokens": 40,
            "temperature": 0,
            "tools": [{"name": "paint", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
    "responses": (RESPONSES, {"input": "Name three colours.", "max_output_tokens": 8, "temperature": 0}),
    "responses with log-probabilities": (
        RESPONSES,
        {"input": "Name three colours.", "max_output_tokens": 8, "temperature": 0, "top_logprobs": 2},
    ),
    "responses with a custom tool": (
        RESPONSES,
        {
            "input": "Name three colours.",
            "max_output_tokens": 40,
            "temperature": 0,
            "tools": [{"type": "custom", "name": "paint"}],
            "tool_choice": "required",
        },
    ),
    "completion with log-probabilities": (
        COMPLETIONS,
        {"prompt": "Once upon", "max_tokens": 10, "logprobs": 2, "echo": True, "top_k": 20, "seed": -5},
    ),
    "completion with parts of characters": (
        COMPLETIONS,
        {"prompt": "日本語", "max_tokens": 12, "top_k": 20, "seed": 11, "ignore_eos": True},
    ),
}


@dataclass
class Group:
    """The events of one report."""

    report: TokenReport
    events: bytes


def groups_of(body: bytes) -> list[Group]:
    """Return a stream's groups of events, with the end of the stream in the last one."""
    groups = []
    body = body.replace(b": keep-alive\n\n", b"")  # comes before the first event on a slow machine
    for part in re.split(rb"^(?=" + REPORT_PREFIX + rb")", body, flags=re.MULTILINE):
        if part:
            line, _, events = part.partition(b"\n")
            groups.append(Group(TokenReport.decode(line), events))
    assert all(group.report.events == group.events.count(b"\n\n") for group in groups)
    return groups


def resume_after(groups: Sequence[Group], fingerprint: str) -> dict[str, Any]:
    """Return the body's field that continues a stream after `groups`."""
    return {
        "resume": {
            "id": groups[0].report.id,
            "created": groups[0].report.created,
            "seed": groups[0].report.seed,
            "model": fingerprint,
            "token_ids": [token for group in groups for token in group.report.token_ids],
            "events": sum(group.report.events for group in groups),
            "logprobs": msgspec.to_builtins([one for group in groups for one in group.report.logprobs]),
        }
    }


def begin(server: Any, name: str, streams: Streams = STREAMS) -> tuple[Answer, list[Group]]:
    """Return the answer of a whole stream, and its groups of events."""
    path, fields = streams[name]
    whole = server.request("POST", path, {"model": "smollm2", "stream": True, **fields}, REPORT)
    assert whole.status == 200, whole.body
    groups = groups_of(whole.body)
    assert len(groups) > 2 and groups[-1].report.usage is not None
    return whole, groups


def resume(
    server: Any,
    name: str,
    whole: Answer,
    groups: Sequence[Group],
    stream: str | None = None,
    streams: Streams = STREAMS,
) -> list[Group]:
    """Return the groups that follow some of a whole stream. stream: the value of `Fairlead-Stream`."""
    rest = ask_to_resume(server, name, whole, groups, stream, streams)
    assert rest.status == 200, rest.body
    return groups_of(rest.body)


def ask_to_resume(
    server: Any,
    name: str,
    whole: Answer,
    groups: Sequence[Group],
    stream: str | None = None,
    streams: Streams = STREAMS,
) -> Answer:
    """Return the answer to the request that continues a stream, or is refused."""
    path, fields = streams[name]
    body = {"model": "smollm2", "stream": True, **fields}
    body["fairlead"] = resume_after(groups, whole.headers[headers.MODEL.lower()])
    received = REPORT | {headers.RESUME: "1"} | ({headers.STREAM: stream} if stream else {})
    answer: Answer = server.request("POST", path, body, received)
    return answer
