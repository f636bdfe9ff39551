"""Answers in channels, as gpt-oss writes them."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from asked import APIS, CHAT, MESSAGES, ask, stream
from local_server import LocalServer, serving, serving_model
from server.api.answers.test_continuations import check_continued
from thinking_models import write_template

TEMPLATE = """{{ tools }}{# <|channel|> #}{% for message in messages %}<|start|>{{ message.role }}<|message|>
{{- message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.paint <|constrain|>json<|message|>{"colour": "red"}<|call|>'
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS = {"paint": SCHEMA}
FORM = '<|channel|>final <|constrain|>json<|message|>{"colour": "red"}'


@pytest.fixture(scope="module")
def flag(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_template(tmp_path_factory.mktemp("channels"), TEMPLATE)


@pytest.fixture(scope="module", params=["tokens", pytest.param("text", marks=pytest.mark.more)])
def channels(request: pytest.FixtureRequest, models: dict[str, str], flag: str) -> Iterator[LocalServer]:
    with serving(flag, model=models[request.param], names=["smollm2"]) as server:
        yield server


ANSWERS: dict[str, tuple[str, dict[str, Any], tuple[str, str, list[Any]]]] = {
    "thoughts and text": (f"{THOUGHT}<|channel|>final<|message|>Red.", {}, ("Hm.", "Red.", [])),
    "text without a header": ("Red.", {}, ("", "Red.", [])),
    "thoughts and a call": (THOUGHT + CALL, {"tools": TOOLS}, ("Hm.", "", [("paint", {"colour": "red"})])),
    "thoughts and a form": (THOUGHT + FORM, {"schema": SCHEMA}, ("Hm.", '{"colour": "red"}', [])),
    "a form alone": (FORM, {"schema": SCHEMA}, ("", '{"colour": "red"}', [])),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("api", APIS)
def test_channels_are_read_whole_and_streamed(channels: LocalServer, api: str, name: str) -> None:
    text, fields, expected = ANSWERS[name]
    with channels.saying(text):
        reply = ask(channels, api, **fields)
        assert stream(channels, api, **fields) == reply
    assert (reply.reasoning, reply.content, reply.calls) == expected
    assert reply.reasoning_tokens == len(channels.tokens(expected[0]))


@pytest.mark.parametrize("name", ["thoughts and a call", "thoughts and a form"])
def test_stream_in_channels_continues_after_any_token(channels: LocalServer, name: str) -> None:
    text, fields, _ = ANSWERS[name]
    check_continued(channels, text, CHAT, fields)


@pytest.mark.more
def test_real_model_puts_forms_into_the_final_channel_and_calls_into_theirs(
    models: dict[str, str], flag: str
) -> None:
    fields: dict[str, Any] = {"limit": 80, "thinking_token_budget": 2}
    with serving_model(flag, model=models["tokens"], names=["smollm2"]) as server:
        for api in (CHAT, MESSAGES):
            formed = ask(server, api, schema=SCHEMA, **fields)
            called = ask(server, api, tools=TOOLS, choice="required", parallel=False, **fields)
            jsonschema.validate(json.loads(formed.content), SCHEMA)
            assert [(name, arguments["colour"]) for name, arguments in called.calls] == [("paint", "red")]
            assert called.content == ""
