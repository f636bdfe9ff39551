"""Streams that wait for a replica: comments, what follows them, and streams that broke off."""

import asyncio
import json

import openai
import pytest

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.obstacle import Obstacle
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address

COMMENT = b": keep-alive\n\n"
IMPATIENT = HoldSettings(comment_seconds=0.01)
DONE = b"data: [DONE]\n\n"
NAMED = {"request_id": "mine"}


async def stream(engine, request, writer):
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    )


async def bad_request(engine, request, writer):
    body = json.dumps({"error": {"message": "no such thing", "type": "t", "code": "invalid_value"}}).encode()
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def commented(response) -> None:
    """Wait for two comments."""
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["X-Accel-Buffering"] == "no"
    assert await response.content.readexactly(2 * len(COMMENT)) == 2 * COMMENT


async def rest(response) -> bytes:
    async with asyncio.timeout(60):
        return (await response.read()).replace(COMMENT, b"")


async def test_a_stream_gets_comments_and_then_its_events(start_engine, start_scaled, scale):
    router = await start_scaled(IMPATIENT)
    async with router.chat(stream=True) as response:
        await commented(response)
        scale.set(await start_engine(stream))
        assert await rest(response) == DONE
    assert await router.metric(r'fairlead_router_requests_total\{code="200",model="default/m"\}') == 1


async def test_a_request_without_a_stream_gets_nothing_before_its_answer(
    start_engine, start_scaled, scale, eventually
):
    router = await start_scaled(IMPATIENT)
    streamed = await router.chat(stream=True)
    reader, writer = await router.connect()
    writer.write(
        b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    await eventually(lambda: router.server._hold.count == 2)
    await commented(streamed)

    scale.set(await start_engine())

    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert b"Content-Type: application/json\r\n" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    streamed.close()


@pytest.mark.parametrize(
    ("path", "beginning"),
    [
        ("/v1/chat/completions", b'data: {"error":'),
        ("/v1/messages", b"event: error\ndata: {"),
        ("/v1/responses", b"event: response.created\ndata: {"),
    ],
)
async def test_a_failure_after_comments_is_an_event_in_the_shape_of_the_api(
    start_scaled, scale, path, beginning
):
    router = await start_scaled(IMPATIENT)
    async with router.session.post(router.url + path, json={"model": "m", "stream": True}) as response:
        await commented(response)
        scale.set(obstacle=Obstacle("ImagePullBackOff", "no such image", permanent=True))
        event = await rest(response)
    assert event.startswith(beginning)
    assert b"no_replica" in event and b"ImagePullBackOff" in event and b"no such image" not in event


async def test_openais_client_gets_the_error_of_a_response_that_never_began(start_scaled, scale):
    router = await start_scaled(IMPATIENT)
    client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    async with client, client.responses.stream(model="m", input="Hello", extra_body=NAMED) as stream:
        scale.set(obstacle=Obstacle("ImagePullBackOff", "no such image", permanent=True))
        events = [event async for event in stream]
    assert [event.type for event in events] == ["response.created", "error", "response.failed"]
    failed = events[-1].response
    assert (failed.id, failed.status, failed.output) == ("resp_mine", "failed", [])
    assert failed.error is not None and "ImagePullBackOff" in failed.error.message


async def test_a_refusal_of_the_engine_after_comments_is_an_event(start_engine, start_scaled, scale):
    router = await start_scaled(IMPATIENT)
    async with router.chat(stream=True) as response:
        await commented(response)
        scale.set(await start_engine(bad_request))
        event, done = (await rest(response)).split(b"\n\n", 1)
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"], done) == ("invalid_value", "no such thing", DONE)


async def test_a_client_of_http_1_0_gets_comments_and_events_without_chunks(
    start_engine, start_scaled, scale
):
    router = await start_scaled(IMPATIENT)
    reader, writer = await router.connect()
    body = b'{"model":"m","stream":true}'
    writer.write(
        b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"chunked" not in head
    assert await reader.readexactly(len(COMMENT)) == COMMENT
    scale.set(await start_engine(stream))
    assert (await reader.read()).replace(COMMENT, b"") == DONE
    writer.close()


class Interrupted:
    """Sends one event, and the second one only to the request that continues the stream."""

    def __init__(self) -> None:
        self.die = asyncio.Event()

    async def __call__(self, engine, request, writer):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: w\r\n"
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        if request.header("Fairlead-Resume") == "1":
            report = TokenReport(42, [2], 1).encode() + b"data: two\n\n"
            end = TokenReport(42, events=1, usage=ReportedUsage(1, 2)).encode() + DONE
            for data in (report, end):
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            writer.write(b"0\r\n\r\n")
            return
        data = TokenReport(42, [1], 1, id="i", created=7).encode() + b"data: one\n\n"
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.die.wait()


async def test_a_stream_of_the_only_replica_continues_after_its_restart(
    start_engine, start_router, eventually
):
    engine = await start_engine(Interrupted())
    router = await start_router({"m": [engine]}, hold=HoldSettings())
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        await engine.stop()
        await eventually(lambda: router.server._hold.count == 1)
        await engine.start()
        assert await rest(response) == b"data: two\n\n" + DONE


async def test_a_stream_that_waited_for_its_beginning_has_the_whole_time_when_it_breaks_off(
    start_engine, start_scaled, scale, eventually
):
    router = await start_scaled()
    hold, engine = router.server._hold, await start_engine(Interrupted())
    opening = asyncio.create_task(router.chat(stream=True))
    await eventually(lambda: hold.count == 1)
    (first_wait,) = hold._lines[scale.key][""]
    scale.set(engine)
    async with await opening as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        first_wait.until = 0.0  # as after the longest wait

        await engine.stop()

        await eventually(lambda: hold.count == 1 and router.server._health.down)
        await engine.start()
        assert await rest(response) == b"data: two\n\n" + DONE


async def test_a_replica_that_cannot_continue_a_stream_is_not_asked_again_after_a_wait(
    start_engine, start_router, eventually
):
    resumed, is_full = [], asyncio.Event()

    async def refuse(engine, request, writer):
        code, status = "queue_full", b"503 Busy\r\nRetry-After: 0.5"
        if request.header("Fairlead-Resume") == "1":
            resumed.append(request)
            await is_full.wait()
            code, status = "model_mismatch", b"409 Conflict"
        body = json.dumps({"error": {"message": "", "type": "", "code": code}}).encode()
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    first = await start_engine(Interrupted())
    router = await start_router({"m": [first]}, hold=HoldSettings())
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        second = await start_engine(refuse)
        addresses = tuple(Address.parse(engine.url) for engine in (first, second))
        router.server._directory.put(Deployment(Key("default", "m"), ("m",), addresses, vouched=True))
        await first.stop()
        await eventually(lambda: len(resumed) == 1)
        async with router.chat() as other:  # the wait begins while the second replica is full
            assert other.status == 503
        is_full.set()
        assert b'"code":"interrupted"' in await rest(response)
    assert len(resumed) == 1


async def test_a_stream_is_not_held_for_a_replica_with_other_weights(start_engine, start_router, eventually):
    async def other(engine, request, writer):
        body = json.dumps({"error": {"message": "", "type": "", "code": "model_mismatch"}}).encode()
        head = b"HTTP/1.1 409 Conflict\r\nFairlead-Model: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)

    engine = await start_engine(Interrupted())
    router = await start_router({"m": [engine]}, hold=HoldSettings())
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        await engine.stop()
        await eventually(lambda: router.server._hold.count == 1)
        engine.behave = other
        await engine.start()
        assert b'"code":"interrupted"' in await rest(response)
