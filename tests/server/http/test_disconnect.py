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
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="smollm2"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Once upon a time", ["Once", "Twice", "Thrice"]], ids=["one", "several"])
def test_disconnect_aborts_the_request(server: Any, stream: bool, prompt: str | list[str]) -> None:
    count = len(prompt) if isinstance(prompt, list) else 1
    until(lambda: server.metric(RUNNING) == 0)
    before = server.metric(ABORTED)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(REQUEST | {"prompt": prompt, "stream": stream}))
    assert connection.sock is not None
    if stream:
        assert connection.sock.recv(4096).startswith(b"HTTP/1.1 200")
    until(lambda: server.metric(RUNNING) == count)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: server.metric(RUNNING) == 0 and server.metric(BLOCKS) == 0)
    assert server.metric(ABORTED) == before + count


def test_closing_a_stream_aborts_the_request(server: Any, client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "Tell me a long story."}
    with client.chat.completions.create(
        model="smollm2",
        messages=[question],  # type: ignore[list-item]
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(stream)
        assert server.metric(RUNNING) == 1
    until(lambda: server.metric(RUNNING) == 0)
    until(
        lambda: (
            server.metric('http_requests_total{handler="/v1/chat/completions",method="POST",status="499"}')
            == 1
        )
    )


def test_disconnect_before_the_end_of_the_body_starts_no_request(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    assert server.get("/health").status == 200
