"""The ends of streams that break off: those of a router, and those of an engine server with the same error."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import anthropic
import openai
import pytest
from local_server import LocalServer, serving
from resumable_streams import chunk, reset

from engine_server.router import errors
from engine_server.server.api import read_request
from engine_server.server.generation.generation import Generation
from engine_server.server.http.errors import ApiError

COMMENT = b": keep-alive\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NOW = 1_700_000_000.0
QUESTION = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello"},
    "/v1/chat/completions": {"messages": QUESTION},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 5},
    "/v1/responses": {"input": "Hello"},
}
MOMENTS = ("before anything", "after a comment", "in mid-stream")
# The fields of a response that a router doesn't know.
ECHOED = (
    "output", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature",
    "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user", "background",
    "previous_response_id", "service_tier", "store",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine_server() -> Iterator[LocalServer]:
    # The router's tests run without torch, which is asked for the device's name.
    device = mock.patch("engine_server.server.fingerprint.device_kind", return_value="cpu")
    with device, serving("--sse-keep-alive-interval=0.05", names=["m"]) as server:
        yield server


def failure(moment: str) -> errors.RequestError:
    """Return the error of the router that a lost engine means."""
    return errors.no_answer("m", 3) if moment == "before anything" else errors.interrupted("m")


@contextmanager
def failing(moment: str) -> Iterator[None]:
    """Let each generation of the engine server fail with the router's error. The clock of answers stands still."""
    error, real, begun = failure(moment), Generation.next, set()

    async def next_events(generation: Generation) -> list[Any]:
        if moment == "before anything" or generation in begun:
            raise ApiError(error.code, str(error))
        if moment == "after a comment":
            await generation._changed.wait()
            begun.add(generation)
            return []
        if events := await real(generation):
            begun.add(generation)
        return events

    with (
        mock.patch.object(Generation, "next", next_events),
        mock.patch.object(read_request, "time", SimpleNamespace(time=lambda: NOW)),
        mock.patch.object(errors, "time", lambda: NOW),
    ):
        yield


def losing(beginning: bytes):
    """Return the behaviour of an engine that is lost after the beginning of its stream."""

    async def behave(engine, request, writer):
        if beginning:
            writer.write(STREAM_HEAD)
            chunk(writer, beginning)
        await reset(engine, request, writer, 0)

    return behave


async def post(session, url: str, path: str) -> tuple[int, bytes]:
    body = {"model": "m", "stream": True, "request_id": "mine", **BODIES[path]}
    headers = {"X-Request-Id": "mine", "Content-Type": "application/json"}
    async with session.post(url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.read()


def split(body: bytes) -> tuple[bytes, bytes]:
    """Return a stream's events before its end, and the end, which begins with an error or what comes before it."""
    events = [event + b"\n\n" for event in body.replace(COMMENT, b"").split(b"\n\n") if event]
    at = next(number for number, event in enumerate(events) if is_error(event))
    if at == 1 and events[0].startswith(b"event: response.created"):
        at = 0
    return b"".join(events[:at]), b"".join(events[at:])


def is_error(event: bytes) -> bool:
    return event.startswith((b"event: error", b'data: {"error"', b'{"'))


def comparable(end: bytes) -> bytes:
    """Return an end without what differs: types of errors, and what a router doesn't know of a response."""
    lines = []
    for line in end.split(b"\n"):
        name, _, data = line.rpartition(b"data: ")
        if not data.startswith(b"{"):
            lines.append(line)
            continue
        event = json.loads(data)
        event.get("error", {}).pop("type", None)
        for field in ECHOED:
            event.get("response", {}).pop(field, None)
        lines.append(name + json.dumps(event).encode())
    return b"\n".join(lines)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", BODIES)
async def test_stream_of_a_lost_engine_ends_as_an_engines_own_with_this_error(
    start_engine, start_router, engine_server, path, moment
):
    router = await start_router()
    with failing(moment):
        own_status, own = await post(router.session, f"http://127.0.0.1:{engine_server.port}", path)
        before, own_end = split(own)
        beginning = COMMENT + before if own_status == 200 else b""
        router = await start_router({"m": [await start_engine(losing(beginning)) for _ in range(3)]})
        status, lost = await post(router.session, router.url, path)
    lost_before, lost_end = split(lost)

    assert status == own_status
    assert lost_before == before
    assert comparable(lost_end) == comparable(own_end)
    assert failure(moment).code.encode() in lost_end


async def reported(url: str, path: str) -> list[str]:
    """Return what OpenAI's or Anthropic's client reports of a stream that breaks off."""
    options: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    asked = {"model": "m", **BODIES[path]}
    seen: list[str] = []
    try:
        if path == "/v1/messages":
            async with anthropic.AsyncAnthropic(base_url=url, **options) as client:
                async for _ in await client.messages.create(**asked, stream=True):
                    pass
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", **options) as client:
            if path == "/v1/responses":
                async with client.responses.stream(**asked) as stream:
                    async for event in stream:
                        if event.type == "error":
                            seen += [event.message, str(event.code)]
                        elif event.type == "response.failed":
                            assert event.response.error is not None
                            seen += [event.response.error.message, event.response.error.code]
            elif path == "/v1/completions":
                async for _ in await client.completions.create(**asked, stream=True):
                    pass
            else:
                async for _ in await client.chat.completions.create(**asked, stream=True):
                    pass
    except (openai.APIError, anthropic.APIError) as error:
        assert isinstance(error.body, dict)
        detail = error.body.get("error", error.body)
        seen += [type(error).__name__, detail["message"], detail["code"]]
    return seen


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", BODIES)
async def test_clients_report_the_same_error_of_a_lost_engine_as_of_an_engine(
    start_engine, start_router, engine_server, path, moment
):
    engine_url, error = f"http://127.0.0.1:{engine_server.port}", failure(moment)
    router = await start_router()
    with failing(moment):
        own_status, body = await post(router.session, engine_url, path)
        beginning = COMMENT + split(body)[0] if own_status == 200 else b""
        own = await reported(engine_url, path)
        router = await start_router({"m": [await start_engine(losing(beginning)) for _ in range(3)]})
        lost = await reported(router.url, path)
    assert lost == own
    assert str(error) in lost and error.code in lost
