"""Streams that another engine continues, as the router asks for it; here the same scripted engine plays both."""

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from continued_streams import COMPLETIONS, REPORT, STREAMS, ask_to_resume, begin, groups_of, resume
from local_server import serving
from msgspec.structs import replace

from engine_server.contract.wire import headers
from engine_server.contract.wire.continuation import REPORT_PREFIX, StreamTerms, TokenReport
from engine_server.requests.pictures import Picture, PlaceholderRun, PromptPicture
from engine_server.server.api.continuation import check_prompt, first_report
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.generation.prompts import PreparedPrompt
from engine_server.server.http.errors import ApiError

COLOURS = "Red, green and blue."
TEXTS = {
    "chat with a stop string, usage and token ids": "Red, blue, zebra and quartz.",
    "chat with a schema": '{"colour": "red"}',
    "chat with a tool call": '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>',
    "messages with a tool call": '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>',
    "responses with a custom tool": '<tool_call>\n{"name": "paint", "arguments": {"input": "red"}}\n</tool_call>',
    "completion with parts of characters": "語 🎉",
}


@pytest.mark.parametrize("way", ["short", "long"])
@pytest.mark.parametrize("name", STREAMS)
def test_stream_continued_after_any_token_is_identical_byte_for_byte(
    scripted: Any, name: str, way: str
) -> None:
    never = mock.patch("engine_server.server.generation.answer_stream.open_short_way", return_value=None)
    with scripted.saying(TEXTS.get(name, COLOURS)):
        with never if way == "long" else nullcontext():
            whole, groups = begin(scripted, name)
        for count in range(1, len(groups)):
            expected, rest = groups[count:], resume(scripted, name, whole, groups[:count])
            assert [group.events for group in rest] == [group.events for group in expected]
            assert [group.report.token_ids for group in rest] == [
                group.report.token_ids for group in expected
            ]
            assert rest[-1].report.usage == expected[-1].report.usage


@pytest.mark.parametrize("name", ["chat with a stop string, usage and token ids", "messages", "responses"])
def test_first_report_has_the_cached_tokens_and_a_continuation_repeats_them(scripted: Any, name: str) -> None:
    scripted.core.scripted.num_cached = 16
    with scripted.saying(COLOURS):
        whole, groups = begin(scripted, name)
        scripted.core.scripted.num_cached = 0
        rest = resume(scripted, name, whole, groups[:2], StreamTerms(16).value())
        uncounted = resume(scripted, name, whole, groups[:2])

    assert [group.report.cached_tokens for group in groups] == [16] + [None] * (len(groups) - 1)
    assert groups[-1].report.usage is not None and re.search(rb'"cache[a-z_]*":16', whole.body)
    assert [group.events for group in rest] == [group.events for group in groups[2:]]
    assert b":16" not in uncounted[-1].events  # without the count in the request


def test_reported_tokens_are_those_of_the_answer(scripted: Any) -> None:
    body = {"model": "smollm2", "prompt": "Once upon", "max_tokens": 9, "return_token_ids": True}
    groups = groups_of(scripted.request("POST", COMPLETIONS, body | {"stream": True}, REPORT).body)
    assert len({group.report.seed for group in groups}) == 1
    reported = [token for group in groups for token in group.report.token_ids]
    whole = scripted.request("POST", COMPLETIONS, body | {"seed": groups[0].report.seed})
    assert whole.json["choices"][0]["token_ids"] == reported
    usage = groups[-1].report.usage
    assert whole.headers[headers.USAGE.lower()] == f"prompt={usage.prompt_tokens}, completion=9"


# Of streams that can't be continued.
UNCONTINUABLE: dict[str, dict[str, Any]] = {
    "several choices": {"n": 2},
    "several prompts": {"prompt": ["a", "b c"]},
    "beam search": {"n": 2, "use_beam_search": True},
    "prompt alone": {"echo": True, "max_tokens": 0},
}


@pytest.mark.parametrize("name", UNCONTINUABLE)
def test_stream_that_cannot_be_continued_reports_its_usage_before_its_end_and_nothing_else(
    scripted: Any, name: str
) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, **UNCONTINUABLE[name]}
    with scripted.saying(COLOURS):
        whole = scripted.request("POST", COMPLETIONS, body)
        stream = scripted.request("POST", COMPLETIONS, body | {"stream": True}, REPORT)

    events, _, end = stream.body.partition(REPORT_PREFIX)
    line, _, end = end.partition(b"\n")
    report = TokenReport.decode(REPORT_PREFIX + line)
    assert events.startswith(b"data: ") and end == b"data: [DONE]\n\n"
    assert report.usage is not None and report.usage.value() == whole.headers[headers.USAGE.lower()]
    assert report.usage.prompt_tokens > 0
    assert (report.id, report.token_ids, report.events) == (None, [], 1)


def test_first_report_has_the_length_of_the_prompt(scripted: Any) -> None:
    _, groups = begin(scripted, "chat")

    usage = groups[-1].report.usage
    assert usage is not None
    assert [group.report.prompt_tokens for group in groups] == [usage.prompt_tokens] + [None] * (
        len(groups) - 1
    )


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"]}, {"stream": False}])
def test_answers_that_cannot_be_continued_are_not_resumed(scripted: Any, fields: dict[str, Any]) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "stream": True, **fields}
    answer = scripted.request("POST", COMPLETIONS, body, REPORT)
    assert answer.status == 200
    resume = {"id": "cmpl-1", "created": 1, "seed": 1, "token_ids": [], "events": 0}
    resume["model"] = answer.headers[headers.MODEL.lower()]
    refused = scripted.request(
        "POST", COMPLETIONS, body | {"fairlead": {"resume": resume}}, {headers.RESUME: "1"}
    )
    assert refused.status == 400
    assert refused.error["message"] == "only a stream of one choice can be continued"


def test_stream_is_continued_with_its_settings_and_its_prompt_alone(scripted: Any) -> None:
    with scripted.saying(COLOURS):
        whole, groups = begin(scripted, "chat")
        own = StreamTerms(0, groups[0].report.prompt_hash, whole.headers[headers.STREAM.lower()])
        assert own.prompt_hash is not None
        rest = resume(scripted, "chat", whole, groups[:3], own.value())
        others = [replace(own, settings="0" * 32), replace(own, prompt_hash="0" * 32)]
        refused = [ask_to_resume(scripted, "chat", whole, groups[:3], terms.value()) for terms in others]

    assert [group.events for group in rest] == [group.events for group in groups[3:]]
    for answer in refused:
        assert (answer.status, answer.error["code"]) == (409, "model_mismatch")
        assert answer.headers[headers.MODEL.lower()] == whole.headers[headers.MODEL.lower()]
        assert answer.headers[headers.STREAM.lower()] == own.settings


def test_stream_is_continued_with_its_pictures_alone() -> None:
    def request(terms: StreamTerms) -> Any:
        return SimpleNamespace(
            report=TokenReport(seed=1),
            context=SimpleNamespace(router=SimpleNamespace(terms=terms)),
            identity=AnswerIdentity("id", 1, "m", "f" * 32),
        )

    def prompts(*digests: str) -> list[PreparedPrompt]:
        pictures = [
            PromptPicture(Picture(b"", "0" * 64), digest, (PlaceholderRun(number, 1),))
            for number, digest in enumerate(digests)
        ]
        return [PreparedPrompt({"prompt_token_ids": [5, 5, 1], "pictures": pictures})]

    report = first_report(request(StreamTerms()), prompts("a", "b"))
    assert report is not None
    continuing = request(StreamTerms(prompt_hash=report.prompt_hash))

    check_prompt(continuing, prompts("a", "b"))
    for other in (prompts("b", "a"), prompts("a", "c"), [PreparedPrompt({"prompt_token_ids": [5, 5, 1]})]):
        with pytest.raises(ApiError, match="other tokens or pictures") as raised:
            check_prompt(continuing, other)
        assert (raised.value.status, raised.value.code) == (409, "model_mismatch")


def test_continued_stream_has_the_day_on_which_it_began(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    long_ago = SimpleNamespace(time=lambda: 1_000_000_000.0)
    with serving(f"--chat-template={template}") as server, server.saying(COLOURS):
        with mock.patch("engine_server.server.api.read_request.time", long_ago):
            whole, groups = begin(server, "chat")
        terms = StreamTerms(prompt_hash=groups[0].report.prompt_hash)
        rest = resume(server, "chat", whole, groups[:3], terms.value())
        prompts = [server.host.model.tokenizer.decode(one.token_ids()) for one in server.core.requests]

    assert prompts[0].startswith("2001-09-") and prompts[1].startswith(prompts[0])  # with the tokens so far
    assert [group.events for group in rest] == [group.events for group in groups[3:]]


def test_streams_have_no_reports_unless_requested(scripted: Any) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "stream": True}
    assert REPORT_PREFIX not in scripted.post(COMPLETIONS, body).body


def test_resume_without_the_routers_header_is_ignored(scripted: Any) -> None:
    body = {"model": "smollm2", "prompt": "a", "max_tokens": 2, "fairlead": {"resume": "anything"}}
    assert scripted.post(COMPLETIONS, body).status == 200


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
def test_wrong_resume_is_refused(scripted: Any, resume: Any, status: int, code: str) -> None:
    body = {"model": "smollm2", "prompt": "a", "stream": True, "fairlead": {"resume": resume}}
    answer = scripted.request("POST", COMPLETIONS, body, {headers.RESUME: "1"})
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
    scripted: Any, path: str, content: dict[str, Any]
) -> None:
    body = {"model": "an alias", **content}

    answer = scripted.request("POST", path, body, {headers.DEPLOYMENT: "second-name"})
    direct = scripted.request("POST", path, body)

    assert (answer.status, answer.json["model"]) == (200, "an alias")
    assert direct.status == 404


def test_deployment_of_the_router_takes_any_model_and_refuses_other_deployments(scripted: Any) -> None:
    body = {"model": "an alias", "prompt": "a", "max_tokens": 1}
    own = scripted.request("POST", COMPLETIONS, body, {headers.DEPLOYMENT: "second-name"})
    assert (own.status, own.json["model"]) == (200, "an alias")
    for name, value in ((headers.DEPLOYMENT, "default/other"), (headers.ADAPTER, "french")):
        refused = scripted.request("POST", COMPLETIONS, body | {"model": "smollm2"}, {name: value})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")


def test_every_answer_reports_load_and_model(scripted: Any) -> None:
    answers = [
        scripted.get("/v1/models"),
        scripted.get("/nothing"),
        scripted.post(COMPLETIONS, {"model": "nobody", "prompt": "a"}),
        scripted.post(COMPLETIONS, {"model": "smollm2", "prompt": "a", "max_tokens": 1}),
    ]
    for answer in answers:
        assert re.fullmatch(
            r"running=\d+, waiting=\d+, room=\d+, kv=\d\.\d{3}, context=1024",
            answer.headers[headers.LOAD.lower()],
        )
        assert answer.headers[headers.MODEL.lower()] == answers[-1].json["system_fingerprint"]
        assert re.fullmatch("[0-9a-f]{32}", answer.headers[headers.STREAM.lower()])
        assert answer.headers[headers.STREAM.lower()] == answers[0].headers[headers.STREAM.lower()]
