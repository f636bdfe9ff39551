"""Requests for more work than is allowed are refused at once, while other requests go on."""

import json
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MAX_MESSAGE = 400
MILLION = 1_000_000


def repeated(item: str, count: int) -> str:
    return "[" + ",".join([item] * count) + "]"


def body(**fields: str) -> bytes:
    """Return a request's body from fields in JSON."""
    given = {"model": '"smollm2"', "max_tokens": "1"} | fields
    return ("{" + ",".join(f'"{name}":{value}' for name, value in given.items()) + "}").encode()


def refusal(scripted: Any, path: str, data: bytes) -> Any:
    """Return the error of a request that is refused, and during which the server answers others."""
    with scripted.probed():
        answer = scripted.post(path, data)
    assert answer.status == 400, answer.body[:1000]
    assert len(answer.error["message"]) < MAX_MESSAGE
    assert len(answer.error["param"] or "") <= 200
    return answer.error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", repeated("[1]", 2 * MILLION)),
        ("prompt", repeated("[1]", 100_000)),
        ("prompt", repeated('"a"', MILLION)),
        ("prompt", repeated('"a"', 1025)),
        ("prompt", repeated("1", 4 * MILLION)),
        ("prompt", '"' + "word " * (4 * MILLION) + '"'),
        ("prompt", '"' + "a" * (20 * MILLION) + '"'),
        ("prompt", "[" * MILLION),
        ("stop", repeated('"ab"', 100_000)),
        ("stop", repeated('"ab"', 17)),
        ("stop", '["' + "a" * 257 + '"]'),
        ("stop", '"' + "a" * MILLION + '"'),
        ("stop", '[{"a": ' + "1" * 4000 + "}]"),
        ("bad_words", repeated('"ab"', MILLION)),
        ("bad_words", repeated("1", MILLION)),
        ("bad_words", '["' + "a" * MILLION + '"]'),
        ("stop_token_ids", repeated("5", MILLION)),
        ("allowed_token_ids", repeated("5", MILLION)),
        ("logit_bias", json.dumps(dict.fromkeys(range(MILLION), 1))),
        ("logit_bias", json.dumps({f"a{number}": 1 for number in range(MILLION)})),
        ("logit_bias", json.dumps({"a" * MILLION: 1})),
        ("logit_bias", json.dumps({"5": "a" * MILLION})),
        ("n", "1" * 4000),
        ("n", "1" * MILLION),
        ("temperature", "NaN"),
        ("temperature", "1e999"),
        ("unknown", repeated("[]", MILLION)),
        ("unknown", repeated("{}", MILLION)),
        ("unknown", repeated("1", 5 * MILLION)),
    ],
    ids=lambda value: f"{value[:6]}-{len(value)}" if len(value) > 20 else value,
)
def test_completion_with_too_much_work_is_refused_at_once(scripted: Any, field: str, value: str) -> None:
    fields = {"prompt": '"Hello"', field: value}
    error = refusal(scripted, COMPLETIONS, body(**fields))
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", repeated('{"role": "user", "content": "a"}', 100_000)),
        ("messages", repeated("{}", 100_000)),
        ("messages", repeated('{"role": "user", "content": "a"}', 4097)),
        ("messages", '[{"role": "user", "content": "' + "word " * (4 * MILLION) + '"}]'),
        ("messages", '[{"role": "' + "a" * MILLION + '", "content": "a"}]'),
        ("messages", '[{"role": "user", "content": ' + repeated('{"type": "a"}', 200_000) + "}]"),
    ],
    ids=lambda value: f"{len(value)}" if len(value) > 20 else value,
)
def test_chat_with_too_much_work_is_refused_at_once(scripted: Any, field: str, value: str) -> None:
    error = refusal(scripted, CHAT, body(**{field: value}))
    assert error["param"].startswith("messages")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 100, "n": 100, "temperature": 1}, "n"),
        ({"prompt": ["a"] * 1000, "max_tokens": 1000, "logprobs": 20}, "max_tokens"),
        ({"prompt": ["a"] * 100, "allowed_token_ids": [5] * 20_000}, "n"),
    ],
    ids=["choices", "logprobs", "token rules"],
)
def test_product_of_fields_that_is_too_large_is_refused(
    scripted: Any, fields: dict[str, Any], param: str
) -> None:
    answer = scripted.post(COMPLETIONS, {"model": "smollm2", "max_tokens": 1} | fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert "at most" in answer.error["message"]


def test_body_of_the_largest_size_that_is_text_is_parsed(scripted: Any) -> None:
    """Its prompt is refused for its length, not its structure."""
    error = refusal(scripted, COMPLETIONS, body(prompt='"' + "," * (4 * MILLION) + '"'))
    assert error["param"] == "prompt"
    assert "1024" in error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("data", [b'{"model": "\xff\xfe"}', b'{"model": "\\ud800"}', b"\x00" * 100])
def test_invalid_text_is_refused(scripted: Any, path: str, data: bytes) -> None:
    assert scripted.post(path, data).status == 400


def test_quotation_of_input_in_errors_is_short(scripted: Any) -> None:
    long = "x" * 100_000
    answers = [
        scripted.post(COMPLETIONS, {"model": long, "prompt": "a"}),
        scripted.post(COMPLETIONS, {"model": "smollm2", "prompt": "a", "logit_bias": {long: 1}}),
        scripted.post(CHAT, {"model": "smollm2", "messages": [{"role": long, "content": "a"}]}),
        scripted.post(CHAT, {"model": "smollm2", "messages": HELLO, "modalities": [long]}),
        scripted.get("/" + "x" * 50_000),
    ]
    for answer in answers:
        assert answer.status in (400, 404)
        assert len(answer.body) < 700, answer.body


def test_beams_with_too_many_tokens_are_refused_with_both_numbers(scripted: Any) -> None:
    prompts = repeated(repeated("5", 512), 200)
    error = refusal(scripted, COMPLETIONS, body(prompt=prompts, use_beam_search="true", n="2"))
    assert error["param"] == "use_beam_search"
    assert "width 2 over 102,400 prompt tokens" in error["message"]
    assert "at most 131,072 are allowed" in error["message"]
