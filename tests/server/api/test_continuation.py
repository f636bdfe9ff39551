"""Streams that another engine continues, as the router asks for it; here the same engine plays both."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from waiting import until

from engine_server.contract import headers
from engine_server.contract.continuation import REPORT_PREFIX, TokenReport

pytestmark = pytest.mark.thorough

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
# Few tokens are likely, so that rounding, which differs between a prompt and its continuation, changes no choice.
STREAMS = {
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


def events_of(groups: list[Group]) -> bytes:
    """Return the events without what depends on the engine: the last bits of log-probabilities, cached tokens."""
    events = b"".join(group.events for group in groups)
    events = re.sub(rb'"cached_tokens":\d+', b"", events)
    return re.sub(rb"-\d+\.\d+(e-\d+)?", lambda number: b"%.3f" % float(number[0]), events)


def resume_after(groups: list[Group], fingerprint: str) -> dict[str, Any]:
    """Return the body's field that continues a stream after `groups`."""
    return {
        "resume": {
            "id": groups[0].report.id,
            "created": groups[0].report.created,
            "seed": groups[0].report.seed,
            "model": fingerprint,
            "token_ids": [token for group in groups for token in group.report.token_ids],
            "events": sum(group.report.events for group in groups),
        }
    }


@pytest.mark.parametrize("name", STREAMS)
def test_stream_continued_after_any_token_is_identical_byte_for_byte(server: Any, name: str) -> None:
    path, fields = STREAMS[name]
    # Again if a busy machine made one event of two tokens.
    until(lambda: check_continuations(server, path, {"model": "smollm2", "stream": True, **fields}))


def check_continuations(server: Any, path: str, body: dict[str, Any]) -> bool:
    whole = server.request("POST", path, body, REPORT)
    assert whole.status == 200, whole.body
    groups = groups_of(whole.body)
    assert len(groups) > 2 and groups[-1].report.usage is not None
    for count in range(1, len(groups)):
        fairlead = resume_after(groups[:count], whole.headers[headers.MODEL.lower()])
        rest = server.request("POST", path, body | {"fairlead": fairlead}, REPORT | {headers.RESUME: "1"})
        assert rest.status == 200, rest.body
        rest_groups = groups_of(rest.body)
        assert rest_groups[-1].report.usage == groups[-1].report.usage
        assert events_of(rest_groups) == events_of(groups[count:])
    return True


def test_reported_tokens_are_those_of_the_answer(server: Any) -> None:
    body = {"model": "smollm2", "prompt": "Once upon", "max_tokens": 9, "return_token_ids": True}
    groups = groups_of(server.request("POST", COMPLETIONS, body | {"stream": True}, REPORT).body)
    assert len({group.report.seed for group in groups}) == 1
    reported = [token for group in groups for token in group.report.token_ids]
    whole = server.request("POST", COMPLETIONS, body | {"seed": groups[0].report.seed})
    assert whole.json["choices"][0]["token_ids"] == reported
    usage = groups[-1].report.usage
    assert whole.headers[headers.USAGE.lower()] == f"prompt={usage.prompt_tokens}, completion=9"


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"]}, {"stream": False}])
def test_answers_that_cannot_be_continued_have_no_reports_and_are_not_resumed(
    server: Any, fields: dict[str, Any]
) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "stream": True, **fields}
    answer = server.request("POST", COMPLETIONS, body, REPORT)
    assert answer.status == 200 and REPORT_PREFIX not in answer.body
    resume = {"id": "cmpl-1", "created": 1, "seed": 1, "token_ids": [], "events": 0}
    resume["model"] = answer.headers[headers.MODEL.lower()]
    refused = server.request(
        "POST", COMPLETIONS, body | {"fairlead": {"resume": resume}}, {headers.RESUME: "1"}
    )
    assert refused.status == 400
    assert refused.error["message"] == "only a stream of one choice can be continued"


def test_streams_have_no_reports_unless_requested(server: Any) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "stream": True}
    assert REPORT_PREFIX not in server.post(COMPLETIONS, body).body


def test_resume_without_the_routers_header_is_ignored(server: Any) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "fairlead": {"resume": "anything"}}
    assert server.post(COMPLETIONS, body).status == 200


@pytest.mark.parametrize(
    ("resume", "status", "code"),
    [
        (None, 400, "invalid_value"),
        ({"id": "a"}, 400, "invalid_value"),
        (
            {"id": "a", "created": 1, "seed": 1 << 70, "model": "other", "token_ids": [], "events": 0},
            400,
            "invalid_value",
        ),
        (
            {"id": "a", "created": 1, "seed": 1, "model": "other", "token_ids": [], "events": 0},
            409,
            "model_mismatch",
        ),
    ],
)
def test_wrong_resume_is_refused(server: Any, resume: Any, status: int, code: str) -> None:
    body = {"model": "smollm2", "prompt": "a", "stream": True, "fairlead": {"resume": resume}}
    answer = server.request("POST", COMPLETIONS, body, {headers.RESUME: "1"})
    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    ],
)
def test_alias_that_only_the_router_knows_is_answered_and_echoed(
    server: Any, path: str, content: dict[str, Any]
) -> None:
    body = {"model": "an alias", **content}

    answer = server.request("POST", path, body, {headers.DEPLOYMENT: "second-name"})
    direct = server.request("POST", path, body)

    assert (answer.status, answer.json["model"]) == (200, "an alias")
    assert direct.status == 404


def test_deployment_of_the_router_takes_any_model_and_refuses_other_deployments(server: Any) -> None:
    body = {"model": "an alias", "prompt": "a", "max_tokens": 1}
    own = server.request("POST", COMPLETIONS, body, {headers.DEPLOYMENT: "second-name"})
    assert (own.status, own.json["model"]) == (200, "an alias")
    for name, value in ((headers.DEPLOYMENT, "default/other"), (headers.ADAPTER, "french")):
        refused = server.request("POST", COMPLETIONS, body | {"model": "smollm2"}, {name: value})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")


def test_every_answer_reports_load_and_model(server: Any) -> None:
    answers = [
        server.get("/v1/models"),
        server.get("/nothing"),
        server.post(COMPLETIONS, {"model": "nobody", "prompt": "a"}),
        server.post(COMPLETIONS, {"model": "smollm2", "prompt": "a", "max_tokens": 1}),
    ]
    for answer in answers:
        assert re.fullmatch(
            r"running=\d+, waiting=\d+, room=\d+, kv=\d\.\d{3}", answer.headers[headers.LOAD.lower()]
        )
        assert answer.headers[headers.MODEL.lower()] == answers[-1].json["system_fingerprint"]
