"""The flags that set how every request is answered."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer, serving
from streams import events

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "<{{ style }}|{{ (documents or []) | length }}>"
)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    with serving(
        "--enable-force-include-usage",
        "--return-tokens-as-token-ids",
        "--trust-request-chat-template",
        f"--chat-template={template}",
        '--default-chat-template-kwargs={"style": "plain"}',
        '--override-generation-config={"temperature": 0.0, "max_new_tokens": 3}',
    ) as server:
        yield server


def post(server: Any, path: str, **fields: Any) -> Any:
    answer = server.post(path, {"model": "smollm2"} | fields)
    assert answer.status == 200, answer.body
    return answer.json


def prompt_text(server: Any, **fields: Any) -> str:
    return post(server, CHAT, messages=HELLO, return_prompt_text=True, **fields)["prompt_text"]


def test_template_of_the_flag_gets_the_default_and_the_requests_variables(configured: Any) -> None:
    documents = [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]
    assert prompt_text(configured) == "[user]Hello<plain|0>"
    variables = {"style": "bold"}
    assert prompt_text(configured, chat_template_kwargs=variables) == "[user]Hello<bold|0>"
    assert prompt_text(configured, documents=documents) == "[user]Hello<plain|2>"
    assert prompt_text(configured) == "[user]Hello<plain|0>"


def test_chat_template_may_be_given_as_text() -> None:
    with serving(f"--chat-template={TEMPLATE}") as server:
        assert prompt_text(server) == "[user]Hello<|0>"


@pytest.mark.parametrize(("effort", "rendered"), [("high", "high|True"), ("none", "none|False"), (None, "|")])
def test_effort_is_passed_to_a_template_that_has_the_variable(
    configured: Any, effort: str | None, rendered: str
) -> None:
    template = "{{ reasoning_effort }}|{{ enable_thinking }}"
    variables = {"reasoning_effort": "own"}

    with_effort = prompt_text(configured, chat_template=template, reasoning_effort=effort)
    own = prompt_text(
        configured, chat_template=template, reasoning_effort=effort, chat_template_kwargs=variables
    )

    assert with_effort == rendered
    assert own.startswith("own|")
    assert prompt_text(configured, reasoning_effort=effort) == "[user]Hello<plain|0>"


@pytest.mark.parametrize(
    ("fields", "rendered"),
    [
        ({"enable_thinking": False}, "False"),
        ({"thinking": True}, "True"),
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, "True"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "False"),
    ],
)
def test_switches_of_the_reasoning_are_variables(
    configured: Any, fields: dict[str, Any], rendered: str
) -> None:
    template = "{{ enable_thinking }}"
    assert prompt_text(configured, chat_template=template, **fields) == rendered


def test_switch_that_the_template_does_not_read_is_named(scripted: Any) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    answer = scripted.post("/v1/chat/completions", {**body, "enable_thinking": False, "thinking": True})
    assert answer.headers["x-fairlead-ignored"] == "enable_thinking (switch), thinking (switch)"
    assert "x-fairlead-ignored" not in scripted.post("/v1/chat/completions", body).headers


def test_template_of_a_trusted_request_is_used(configured: Any) -> None:
    assert prompt_text(configured, chat_template="{{ messages[0].content }}!") == "Hello!"


def test_variable_that_a_template_cannot_take_is_refused(configured: Any) -> None:
    template = "{{ messages[0].content * style }}"
    answer = configured.post(CHAT, {"model": "smollm2", "messages": HELLO, "chat_template": template})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == "messages" and "chat template" in answer.error["message"]


def test_sampling_defaults_are_used(configured: LocalServer) -> None:
    assert post(configured, COMPLETIONS, prompt="The capital of")["usage"]["completion_tokens"] == 3
    assert configured.core.requests[-1].params.temperature == 0
    assert post(configured, CHAT, messages=HELLO, max_tokens=4)["usage"]["completion_tokens"] == 4
    post(configured, CHAT, messages=HELLO, temperature=0.5)
    assert configured.core.requests[-1].params.temperature == 0.5


def test_sampling_defaults_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving('--override-generation-config={"temperature": 0.25}'):
        (line,) = [line for line in caplog.messages if line.startswith("sampling defaults: ")]
    assert "'temperature': 0.25" in line


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, {"prompt": "A"}), (CHAT, {"messages": HELLO})])
def test_every_chunk_of_a_stream_has_the_usage(configured: Any, path: str, fields: dict[str, Any]) -> None:
    answer = configured.post(path, {"model": "smollm2", "stream": True} | fields)
    streamed = events(answer.body)
    assert streamed[-1]["choices"] == [] and streamed[-1]["usage"]["completion_tokens"] == 3
    assert all(event["usage"] for event in streamed)


def test_tokens_are_named_by_ids_unless_the_request_wants_text(configured: Any) -> None:
    def names(**fields: Any) -> list[str]:
        answer = post(configured, COMPLETIONS, prompt="The capital of", logprobs=0, **fields)
        return answer["choices"][0]["logprobs"]["tokens"]

    assert all(name.startswith("token_id:") for name in names())
    assert not any(name.startswith("token_id:") for name in names(return_tokens_as_token_ids=False))


def test_salt_and_cached_tokens_pass_between_the_request_and_the_core(configured: LocalServer) -> None:
    for cached, salt in ((0, {}), (2, {"cache_salt": "one"})):
        configured.core.scripted.num_cached = cached
        answer = post(configured, COMPLETIONS, prompt="One, two", max_tokens=1, **salt)
        assert configured.core.requests[-1].cache_salt == salt.get("cache_salt")
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_priority_is_refused_by_a_server_that_does_not_schedule_by_it(configured: Any) -> None:
    answer = configured.post(COMPLETIONS, {"model": "smollm2", "prompt": "A", "priority": 1})
    assert answer.status == 400 and answer.error["param"] == "priority"


def test_chat_template_that_cannot_be_read_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(f"--chat-template={tmp_path / 'nothing'}", ready=False) as server:
        assert server.join() == 1
    assert "chat_template can't be read" in capsys.readouterr().err
