"""A disconnecting client frees the engine resources of its request."""

import http.client
import json
import socket
from typing import Any

import openai
import pytest
from waiting import until

REQUEST = {"model": "smollm2", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
RUNNING = "vllm:num_requests_running"
BLOCKS = "vllm:kv_cache_usage_perc"
CLOSED = 'http_requests_total{handler="/v1/chat/completions",method="POST",status="499"}'
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="smollm2"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Once upon a time", ["Once", "Twice", "Thrice"]], ids=["one", "several"])
def test_disconnect_aborts_the_request(scripted: Any, stream: bool, prompt: str | list[str]) -> None:
    count = len(prompt) if isinstance(prompt, list) else 1
    until(lambda: scripted.metric(RUNNING) == 0)
    before = scripted.metric(ABORTED)
    connection = http.client.HTTPConnection("127.0.0.1", scripted.port, timeout=60)
    with scripted.holding():
        body = REQUEST | {"prompt": prompt, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body))
        assert connection.sock is not None
        if stream:
            assert connection.sock.recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: scripted.metric(RUNNING) == count)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        until(lambda: scripted.metric(RUNNING) == 0 and scripted.metric(BLOCKS) == 0)
    assert scripted.metric(ABORTED) == before + count


def test_closing_a_stream_aborts_the_request(scripted: Any, scripted_client: openai.OpenAI) -> None:
    until(lambda: scripted.metric(RUNNING) == 0)
    question = {"role": "user", "content": "Tell me a long story."}
    with (
        scripted.holding(),
        scripted_client.chat.completions.create(
            model="smollm2",
            messages=[question],  # type: ignore[list-item]
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream,
    ):
        next(stream)
        assert scripted.metric(RUNNING) == 1
        stream.close()
        until(lambda: scripted.metric(RUNNING) == 0)
    until(lambda: CLOSED in scripted.get("/metrics").body.decode())


def test_disconnect_before_the_end_of_the_body_starts_no_request(scripted: Any) -> None:
    with socket.create_connection(("127.0.0.1", scripted.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    assert scripted.get("/health").status == 200
