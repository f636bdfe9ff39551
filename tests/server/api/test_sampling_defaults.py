"""Sampling parameters of requests: the client's fields, else the model's defaults."""

import json

import pytest

from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.completions import CompletionRequest
from engine_server.server.api.generation_request import parse_request

DEFAULTS = {"temperature": 0.25, "top_p": 0.5, "max_tokens": 7}


def completion(**fields: object) -> CompletionRequest:
    return parse_request(CompletionRequest, json.dumps({"model": "m", "prompt": "a", **fields}).encode())


def chat(**fields: object) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    return parse_request(ChatRequest, json.dumps(body).encode())


@pytest.mark.parametrize("make", [completion, chat])
def test_fields_that_are_left_out_or_null_take_the_models_defaults(make) -> None:
    parameters = make(temperature=None).sampling_parameters(DEFAULTS)
    assert {name: parameters[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize("make", [completion, chat])
def test_fields_of_the_request_override_the_models_defaults(make) -> None:
    given = {"temperature": 0, "top_p": 1, "max_tokens": 3}
    parameters = make(**given).sampling_parameters(DEFAULTS)
    assert {name: parameters[name] for name in given} == given


def test_without_defaults_completions_have_16_tokens_and_chat_no_limit() -> None:
    assert completion().sampling_parameters({})["max_tokens"] == 16
    assert chat().sampling_parameters({})["max_tokens"] is None
