"""A disconnecting client frees the engine resources of its request."""

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import openai
import pytest
from api_client import JSON
from local_server import serving
from waiting import until, until_async

from engine_server.server.http.disconnect import WhileConnected

REQUEST = {"model": "smollm2", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
RUNNING = "vllm:num_requests_running"
BLOCKS = "vllm:kv_cache_usage_perc"
CLOSED = 'http_requests_total{handler="/v1/chat/completions",method="POST",status="499"}'
DISCONNECTED = 'http_requests_total{handler="/v1/completions",method="POST",status="499"}'
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="smollm2"}'

# Uvicorn's for the request, and the event stream's that sends.
TASKS_PER_STREAM = 2
# More than the bytes of a body after which uvicorn pauses reading.
LARGE = 100_000


@contextmanager
def asking(port: int, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Send a request for a completion, and disconnect at the end of the context."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(REQUEST | body), JSON)
    assert connection.sock is not None
    try:
        yield connection.sock
    finally:
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prompt", ["Once upon a time", ["Once", "Twice", "Thrice"]], ids=["one", "several"])
def test_disconnect_aborts_the_request(
    scripted: Any, caplog: pytest.LogCaptureFixture, stream: bool, prompt: str | list[str]
) -> None:
    count = len(prompt) if isinstance(prompt, list) else 1
    until(lambda: scripted.metric(RUNNING) == 0)
    before = scripted.metric(ABORTED)
    with scripted.holding():
        with asking(scripted.port, {"prompt": prompt, "stream": stream}) as connection:
            if stream:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            until(lambda: scripted.metric(RUNNING) == count)
        until(lambda: scripted.metric(RUNNING) == 0 and scripted.metric(BLOCKS) == 0)
    assert scripted.metric(ABORTED) == before + count
    assert "Exception in ASGI application" not in caplog.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_disconnect_before_the_first_token_aborts_the_request(scripted: Any, stream: bool) -> None:
    num_requests, before = len(scripted.core.requests), scripted.metric(ABORTED)
    with scripted.holding(0):
        with asking(scripted.port, {"prompt": "Once", "stream": stream}):
            until(lambda: len(scripted.core.requests) == num_requests + 1)
        until(lambda: scripted.metric(ABORTED) == before + 1)


def test_disconnect_after_a_large_body_aborts_the_request(scripted: Any) -> None:
    until(lambda: scripted.metric(RUNNING) == 0)
    with scripted.holding():
        with asking(scripted.port, {"prompt": "Once", "user": "u" * LARGE}):
            until(lambda: scripted.metric(RUNNING) == 1)
        until(lambda: scripted.metric(RUNNING) == 0)


def test_disconnect_aborts_the_running_request_and_starts_no_queued_one(scripted: Any) -> None:
    until(lambda: scripted.metric(RUNNING) == 0)
    before = len(scripted.core.requests)
    body = json.dumps(REQUEST | {"prompt": "Once"}).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with scripted.holding():
        with socket.create_connection(("127.0.0.1", scripted.port)) as connection:
            connection.sendall(request + request)
            until(lambda: scripted.metric(RUNNING) == 1)
        until(lambda: scripted.metric(RUNNING) == 0)
    assert len(scripted.core.requests) == before + 1


def test_open_stream_has_few_tasks() -> None:
    body = {"prompt": "Once", "stream": True}
    with serving() as server, server.holding(), ExitStack() as streams:

        def open_stream() -> None:
            connection = streams.enter_context(asking(server.port, body))
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")

        open_stream()  # the start has ended too
        before = server.num_tasks()
        for _ in range(3):
            open_stream()
        assert server.num_tasks() - before == 3 * TASKS_PER_STREAM


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
    before, answered = len(scripted.core.requests), num_disconnected(scripted)
    with socket.create_connection(("127.0.0.1", scripted.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
    until(lambda: num_disconnected(scripted) == answered + 1)
    assert len(scripted.core.requests) == before


def num_disconnected(server: Any) -> float:
    """Return the number of requests for completions whose client disconnected."""
    text = server.get("/metrics").body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(DISCONNECTED))


class Work:
    """A task that waits in the context, and after it."""

    def __init__(self, request: WhileConnected, error: Exception | None = None) -> None:
        self._request = request
        self._error = error
        self.entered = self.left = False
        self._release = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with self._request:
            self.entered = True
            try:
                await asyncio.Event().wait()
            finally:
                if self._error is not None:
                    raise self._error
        self.left = True
        await self._release.wait()

    def release(self) -> None:
        self._release.set()


async def test_work_that_its_client_left_ends_and_its_task_goes_on() -> None:
    request = WhileConnected()
    work = Work(request)
    await until_async(lambda: work.entered)
    request.disconnect()
    request.disconnect()
    await until_async(lambda: work.left)
    assert work.task.cancelling() == 0
    work.release()
    await work.task


async def test_work_whose_client_left_before_it_ends_at_its_first_wait() -> None:
    request = WhileConnected()
    request.disconnect()
    work = Work(request)
    await until_async(lambda: work.left)
    work.release()
    await work.task


@pytest.mark.parametrize("disconnected", [False, True])
async def test_cancellation_from_elsewhere_goes_on(disconnected: bool) -> None:
    request = WhileConnected()
    work = Work(request)
    await until_async(lambda: work.entered)
    work.task.cancel()
    if disconnected:
        request.disconnect()
    with pytest.raises(asyncio.CancelledError):
        await work.task
    assert not work.left


async def test_error_of_cancelled_work_goes_on() -> None:
    request = WhileConnected()
    work = Work(request, ValueError("failed while it was cancelled"))
    await until_async(lambda: work.entered)
    request.disconnect()
    with pytest.raises(ValueError, match="failed"):
        await work.task
    assert work.task.cancelling() == 0
