"""Whole numbers that a body writes like 16.0 or 1e3, which are integers in JSON Schema and in vLLM's API."""

import json
from typing import Any

import pytest

from engine_server.router.routing.key import read_key
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.completions import CompletionRequest
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.request import MessagesRequest
from engine_server.server.api.pooling.embeddings import EmbeddingRequest
from engine_server.server.http.errors import ApiError

MESSAGES = '"model": "m", "messages": [{"role": "user", "content": "a"}]'


def completion(fields: str) -> Any:
    return parse_request(CompletionRequest, f'{{"model": "m", "prompt": "a", {fields}}}'.encode())


@pytest.mark.parametrize(
    ("field", "written", "number"),
    [
        ("max_tokens", "16.0", 16),
        ("max_tokens", "1e3", 1000),
        ("seed", "-2.50e1", -25),
        ("n", "2.0", 2),
        ("logprobs", "0.0", 0),
        ("priority", "-0.0", 0),
    ],
)
def test_whole_number_is_an_integer_however_it_is_written(field: str, written: str, number: int) -> None:
    value = getattr(completion(f'"{field}": {written}'), field)
    assert (value, type(value)) == (number, int)


@pytest.mark.parametrize("written", ['"5"', "true", "1.5", "1e-1", "1e400", "NaN", "[5.0]", '{"a": 5.0}'])
def test_what_is_no_whole_number_is_refused(written: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(f'"max_tokens": {written}')
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


def test_bounds_hold_for_whole_numbers() -> None:
    for written in ("0", "0.0", "1e9"):
        with pytest.raises(ApiError) as caught:
            completion(f'"n": {written}')
        assert caught.value.param == "n"


def test_error_elsewhere_in_the_body_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        completion('"max_tokens": 16.0, "seed": "5"')
    assert caught.value.param == "seed"


def test_integer_of_thousands_of_digits_beside_a_whole_number_is_refused() -> None:
    with pytest.raises(ApiError):
        completion(f'"max_tokens": 16.0, "metadata": {"1" * 5000}')


def test_whole_numbers_in_lists_and_prompts_are_integers() -> None:
    parsed = completion('"stop_token_ids": [5.0, 6, 1e1], "max_tokens": 3.0')
    assert parsed.stop_token_ids == [5, 6, 10] and set(map(type, parsed.stop_token_ids)) == {int}
    for prompt, expected in (("[1.0, 2]", [[1, 2]]), ("[[1.0, 2], [3]]", [[1, 2], [3]])):
        parsed = parse_request(CompletionRequest, f'{{"model": "m", "prompt": {prompt}}}'.encode())
        assert parsed.prompt == expected
        assert {type(token) for tokens in parsed.prompt for token in tokens} == {int}
    for prompt in ("[1.5]", "[true]", '[1.0, "a"]', "[[1.5]]", "[1.0, [2]]", "[[NaN]]", "[Infinity]"):
        with pytest.raises(ApiError) as caught:
            parse_request(CompletionRequest, f'{{"model": "m", "prompt": {prompt}}}'.encode())
        assert caught.value.param == "prompt"


def test_whole_numbers_of_other_apis_and_nested_objects_are_integers() -> None:
    chat = parse_request(ChatRequest, f'{{{MESSAGES}, "max_completion_tokens": 8.0}}'.encode())
    thinking = '"max_tokens": 4e3, "thinking": {"type": "enabled", "budget_tokens": 2048.0}'
    message: Any = parse_request(MessagesRequest, f"{{{MESSAGES}, {thinking}}}".encode())
    embedding = parse_request(EmbeddingRequest, b'{"model": "m", "input": "a", "dimensions": 8.0}')
    assert chat.max_completion_tokens == 8
    assert (message.max_tokens, message.thinking.budget_tokens) == (4000, 2048)
    assert embedding.dimensions == 8


def test_numbers_of_free_form_fields_stay_as_they_are() -> None:
    schema = {"type": "number", "minimum": 1.0, "maximum": 2}
    form = json.dumps({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    parsed = completion(f'"max_tokens": 16.0, "response_format": {form}, "temperature": 1.0')
    kept = parsed.response_format["json_schema"]["schema"]
    assert [type(kept[name]) for name in ("minimum", "maximum")] == [float, int]
    assert isinstance(parsed.temperature, float)


def test_router_reads_the_same_of_a_body_however_its_numbers_are_written() -> None:
    bodies = [
        f'{{{MESSAGES}, "max_tokens": {tokens}, "timeout": {seconds}}}'.encode()
        for tokens, seconds in (("1000.0", "30.0"), ("1e3   ", "3e1 "), ("1000  ", "30  "))
    ]
    first, *others = [read_key(body, {}, 100) for body in bodies]
    assert first.timeout == 30 and others == [first, first]
