"""Error responses: OpenAI's shape, and the name of the field that is wrong."""

import http.client
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from waiting import until

from engine_server import QueueFullError
from engine_server.server.http.errors import as_api_error

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MAX_BODY_BYTES = 32 << 20
MEGABYTE = bytes(1 << 20)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", 7]}, "prompt"),
        (COMPLETIONS, {"prompt": [10**9]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"temperature": -1}, "temperature"),
        (COMPLETIONS, {"temperature": "hot"}, "temperature"),
        (COMPLETIONS, {"top_p": 0}, "top_p"),
        (COMPLETIONS, {"top_k": -2}, "top_k"),
        (COMPLETIONS, {"top_k": 1.5}, "top_k"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": "5"}, "max_tokens"),
        (COMPLETIONS, {"min_tokens": 20}, "min_tokens"),
        (COMPLETIONS, {"seed": "a"}, "seed"),
        (COMPLETIONS, {"stop": 5}, "stop"),
        (COMPLETIONS, {"stop": [""]}, "stop"),
        (COMPLETIONS, {"stop_token_ids": ["a"]}, "stop_token_ids.0"),
        (COMPLETIONS, {"logprobs": 1000}, "logprobs"),
        (COMPLETIONS, {"stream": "yes"}, "stream"),
        (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
        (
            COMPLETIONS,
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        (COMPLETIONS, {"model": 5}, "model"),
        (COMPLETIONS, {"n": 0}, "n"),
        (COMPLETIONS, {"n": 129}, "n"),
        (COMPLETIONS, {"n": 2, "best_of": 1}, "best_of"),
        (COMPLETIONS, {"logit_bias": {"5": 101}}, "logit_bias"),
        (COMPLETIONS, {"logit_bias": {"60000": 1}}, "logit_bias"),
        (COMPLETIONS, {"presence_penalty": 2.5}, "presence_penalty"),
        # known, and not supported
        (COMPLETIONS, {"suffix": "end"}, "suffix"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages.0.role"),
        (CHAT, {"messages": [*HELLO, {"role": "", "content": "a"}]}, "messages.1.role"),
        (CHAT, user(5), "messages.0.content"),
        (CHAT, user([{"type": "image_url", "image_url": {"url": "data:"}}]), "messages.0.content.0"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 26}, "top_logprobs"),
        (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_invalid_field_is_refused_by_name(
    scripted: Any, path: str, change: dict[str, Any], param: str
) -> None:
    request = {"model": "smollm2", "max_tokens": 4}
    request |= {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    answer = scripted.post(path, request | change)
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert param.split(".")[0] in answer.error["message"] or param == "messages"
    assert answer.error["type"] == "invalid_request_error"
    assert set(answer.error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_prompt_longer_than_the_context_is_refused(scripted: Any, path: str, stream: bool) -> None:
    text = "word " * 1500
    request = {"model": "smollm2", "stream": stream} | (
        {"prompt": text} if path == COMPLETIONS else user(text)
    )
    answer = scripted.post(path, request)
    assert answer.status == 400
    assert answer.error["param"] == ("prompt" if path == COMPLETIONS else "messages")
    message = answer.error["message"]
    assert "1024" in message
    assert any(str(number) in message for number in range(1500, 1600)), message


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "smollm2",}', b"\xff", b"[]", b'"text"', b"null"])
def test_body_that_is_not_a_json_object_is_refused(scripted: Any, path: str, body: bytes) -> None:
    answer = scripted.post(path, body)
    assert answer.status == 400
    assert "JSON" in answer.error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_unknown_model_is_not_found(scripted: Any, path: str) -> None:
    answer = scripted.post(path, {"model": "gpt-9", "prompt": "Hello", "messages": HELLO})
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert "smollm2, second-name" in answer.error["message"]


def test_openai_client_raises_the_error_class_of_the_status(scripted_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        scripted_client.completions.create(model="smollm2", prompt="Hello", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        scripted_client.completions.create(model="gpt-9", prompt="Hello")


def test_unknown_path_and_method_get_an_openai_error(scripted: Any) -> None:
    missing = scripted.get("/v1/nothing")
    assert (missing.status, missing.error["type"]) == (404, "not_found_error")
    wrong = scripted.get(COMPLETIONS)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert "GET /v1/completions" in wrong.error["message"]


def test_body_over_the_limit_is_refused(scripted: Any) -> None:
    answer = scripted.post(COMPLETIONS, bytes(MAX_BODY_BYTES + 1))
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    assert str(MAX_BODY_BYTES) in answer.error["message"]


def test_chunked_body_over_the_limit_is_refused(scripted: Any) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(33):
            yield MEGABYTE

    connection = http.client.HTTPConnection("127.0.0.1", scripted.port, timeout=30)
    connection.request(
        "POST", COMPLETIONS, chunks(), {"Content-Type": "application/json"}, encode_chunked=True
    )
    response = connection.getresponse()
    assert response.status == 413
    connection.close()


def test_body_over_the_limit_is_refused_by_its_content_length(scripted: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scripted.port, timeout=30)
    connection.putrequest("POST", COMPLETIONS)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_log_contains_no_prompt_and_no_answer(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    secret = "the-magic-word-is-xyzzy"
    with caplog.at_level(logging.INFO), scripted.saying(secret):
        assert secret in scripted.post(COMPLETIONS, {"model": "smollm2", "prompt": secret}).body.decode()
        scripted.post(COMPLETIONS, {"model": "smollm2", "prompt": secret, "n": secret})
        scripted.post(CHAT, {"model": "smollm2"} | user([secret]))
        until(lambda: "POST /v1/chat/completions 400" in caplog.text)
    assert secret not in caplog.text


def test_full_queue_is_503_with_retry_after() -> None:
    response = as_api_error(QueueFullError("300 requests are under way")).response()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert b"queue_full" in response.body and b"service_unavailable_error" in response.body
