"""The flags that set how every request is answered, on a server of their own."""

from pathlib import Path
from typing import Any

import pytest
from streams import events

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "<{{ style }}|{{ (documents or []) | length }}>"
)


@pytest.fixture(scope="module")
def configured(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    server = start_server(
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
        "--return-tokens-as-token-ids",
        "--trust-request-chat-template",
        f"--chat-template={template}",
        '--default-chat-template-kwargs={"style": "plain"}',
        '--override-generation-config={"temperature": 0.0, "max_new_tokens": 3}',
    )
    server.wait_for_line("^phase ready ")
    return server


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


def test_template_of_a_trusted_request_is_used(configured: Any) -> None:
    assert prompt_text(configured, chat_template="{{ messages[0].content }}!") == "Hello!"


def test_variable_that_a_template_cannot_take_is_refused(configured: Any) -> None:
    template = "{{ messages[0].content * style }}"
    answer = configured.post(CHAT, {"model": "smollm2", "messages": HELLO, "chat_template": template})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == "messages" and "chat template" in answer.error["message"]


def test_sampling_defaults_are_logged_and_used(configured: Any) -> None:
    line = configured.wait_for_line("sampling defaults: (.*)")
    assert "'temperature': 0.0" in line[1] and "'max_tokens': 3" in line[1]
    answers = [post(configured, COMPLETIONS, prompt="The capital of") for _ in range(2)]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    assert answers[0]["usage"]["completion_tokens"] == 3
    assert post(configured, CHAT, messages=HELLO, max_tokens=4)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("path", "fields"), [(COMPLETIONS, {"prompt": "A"}), (CHAT, {"messages": HELLO})])
def test_every_stream_ends_with_the_usage(configured: Any, path: str, fields: dict[str, Any]) -> None:
    answer = configured.post(path, {"model": "smollm2", "stream": True} | fields)
    last = events(answer.body)[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


def test_tokens_are_named_by_ids_unless_the_request_wants_text(configured: Any) -> None:
    def names(**fields: Any) -> list[str]:
        answer = post(configured, COMPLETIONS, prompt="The capital of", logprobs=0, **fields)
        return answer["choices"][0]["logprobs"]["tokens"]

    assert all(name.startswith("token_id:") for name in names())
    assert not any(name.startswith("token_id:") for name in names(return_tokens_as_token_ids=False))


def test_only_requests_with_the_same_salt_share_cached_blocks(configured: Any) -> None:
    prompt = "A sentence that no other test has, repeated until it fills a block of the cache. " * 4

    def cached(salt: str | None) -> int:
        fields = {} if salt is None else {"cache_salt": salt}
        details = post(configured, COMPLETIONS, prompt=prompt, max_tokens=1, **fields)["usage"][
            "prompt_tokens_details"
        ]
        return details["cached_tokens"]

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == cached(None) == 0
    assert cached("two") > 0 and cached(None) > 0


def test_priority_is_refused_by_a_server_that_does_not_schedule_by_it(configured: Any) -> None:
    answer = configured.post(COMPLETIONS, {"model": "smollm2", "prompt": "A", "priority": 1})
    assert answer.status == 400 and answer.error["param"] == "priority"


def test_chat_template_that_cannot_be_read_ends_the_start(start_server: Any, tmp_path: Path) -> None:
    server = start_server(f"--chat-template={tmp_path / 'nothing'}")
    assert server.process.wait(60) == 1
    assert any("chat_template can't be read" in line for line in server.lines)
