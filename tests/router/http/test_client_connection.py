"""Connections to clients: the variants of HTTP/1.1 that clients use, and refusals of invalid requests."""

import asyncio
import json
import re

import pytest

from engine_server.router.http.limits import Limits

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


async def test_forwards_a_chunked_body_with_its_length(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})

    async def pieces():
        yield b'{"mod'
        yield b'el":"m"}'

    async with router.session.post(f"{router.url}/v1/completions", data=pieces()) as response:
        assert response.status == 200
    assert engine.received[0].body == b'{"model":"m"}'
    assert engine.received[0].header("Content-Length") == "13"
    assert engine.received[0].header("Transfer-Encoding") is None


async def test_pipelined_requests_are_answered_in_order(start_engine, start_router):
    async def behave(engine, request, writer):
        text = json.loads(request.body)["n"].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    router = await start_router({"m": [await start_engine(behave)]})
    requests = []
    for n in range(50):
        body = json.dumps({"model": "m", "n": f"<{n}>"}).encode()
        last = b"Connection: close\r\n" if n == 49 else b""
        requests.append(
            b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (last, len(body), body)
        )
    said = await router.raw(b"".join(requests))
    assert [part.split(b"<")[-1] for part in said.split(b">")[:-1]] == [b"%d" % n for n in range(50)]


async def test_http_1_0_client_gets_an_unchunked_body_ended_by_a_close(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one") + sse("two") + b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    said = await router.raw(
        b'POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"Connection: close" in head and b"chunked" not in head
    assert body == b"data: one\n\ndata: two\n\n"


async def test_closes_the_connection_after_an_answer_if_the_client_asks_for_it(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    said = await router.raw(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b'Connection: close\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    assert said.startswith(b"HTTP/1.1 200") and b"\r\nConnection: close\r\n" in said


async def test_answers_expect_100_continue_before_the_body(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    reader, writer = await router.connect()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: 13\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"model":"m"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_declines_an_upgrade_to_http2_and_reads_the_body(start_engine, start_router):
    """Java's client offers h2c with its first request."""
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    head = (
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    )
    reader, writer = await router.connect()
    writer.write(head + b'HTTP2-Settings: AAMA\r\nContent-Length: 13\r\n\r\n{"mod')
    writer.write(b'el":"m"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert engine.received[0].body == b'{"model":"m"}'
    assert engine.received[0].header("Upgrade") is None
    writer.close()


async def test_forwards_the_path_of_a_target_in_absolute_form(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    said = await router.raw(
        b"POST http://any.where/v1/completions?q=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b'Content-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    assert said.startswith(b"HTTP/1.1 200")
    assert engine.received[0].path == "/v1/completions?q=1"


async def test_pauses_the_engine_while_the_client_is_slow_to_read(start_engine, start_router, eventually):
    """The router buffers little more than the client has read."""
    piece = b"x" * 65536
    size = 64 * 1024 * 1024
    written = 0

    async def behave(engine, request, writer):
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    router = await start_router({"m": [await start_engine(behave)]})
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=65536)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b'Host: localhost\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    await reader.readuntil(b"\r\n\r\n")
    looks: list[int] = []

    def stalled() -> bool:
        looks.append(written)
        return len(looks) > 10 and looks[-10] == written > 0

    await eventually(stalled)
    assert written < size / 2
    got = 0
    while got < size:
        got += len(await reader.read(2**20))
    assert got == size
    writer.close()


@pytest.mark.parametrize("declared", [True, False])
async def test_refuses_a_body_over_the_limit(start_engine, start_router, declared):
    engine = await start_engine()
    router = await start_router({"m": [engine]}, limits=Limits(body=1000))
    exactly = b'{"model":"m","prompt":"%b"}' % (b"x" * 975)
    assert len(exactly) == 1000

    async def pieces(data):
        yield data

    async with router.session.post(
        f"{router.url}/v1/completions", data=exactly if declared else pieces(exactly)
    ) as response:
        assert response.status == 200
    over = exactly + b" "
    async with router.session.post(
        f"{router.url}/v1/completions", data=over if declared else pieces(over)
    ) as response:
        assert response.status == 413
        assert "1000" in (await response.json())["error"]["message"]
        assert response.headers["Connection"] == "close"
    assert len(engine.received) == 1


async def test_a_client_that_is_still_sending_reads_the_refusal(start_router):
    router = await start_router(limits=Limits(body=1000))
    reader, writer = await router.connect()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
        + b"x" * 8_000_000
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    "line", [b"X: " + b"x" * 600_000, b"X: x\r\n" * 100_000], ids=["one line", "many lines"]
)
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["ended", "open"])
async def test_refuses_a_head_over_the_limit(start_router, line, end):
    router = await start_router()
    said = await router.raw(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n" + line + end
    )
    assert said.startswith(b"HTTP/1.1 431") and b"65536" in said


async def test_refuses_a_head_over_the_limit_that_arrives_at_once(start_router):
    router = await start_router(limits=Limits(head=1000))
    said = await router.raw(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nX: " + b"x" * 1000 + b"\r\n\r\n"
    )
    assert said.startswith(b"HTTP/1.1 431")


async def test_a_refused_connection_is_closed_and_counted(start_router, caplog):
    router = await start_router()
    answer = await router.raw(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"
    )
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer
    json.loads(answer.partition(b"\r\n\r\n")[2])
    assert await router.metric(r'fairlead_router_requests_total\{code="400",model=""\}') == 1


@pytest.mark.parametrize(
    ("target", "kind"),
    [("/v1/messages", "request_too_large"), ("/v1/messages/count_tokens?beta=true", "request_too_large")],
)
async def test_refusals_have_the_shape_of_the_path(start_router, target, kind):
    router = await start_router(limits=Limits(body=10))
    head = f"POST {target} HTTP/1.1\r\nContent-Length: 11\r\n\r\n"
    body = json.loads((await router.raw(head.encode())).partition(b"\r\n\r\n")[2])
    assert body["type"] == "error" and body["error"]["type"] == kind
    assert body["error"]["code"] == "body_too_large"


async def test_answers_two_thousand_offers_of_http2_in_one_write(start_engine, start_router, caplog):
    router = await start_router({"m": [await start_engine()]})
    offer = POST.replace(b"Content", b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent")
    end = POST.replace(b"Content", b"Connection: close\r\nContent")
    said = await router.raw(offer * 2_000 + end)
    assert said.count(b"HTTP/1.1 200 OK") == 2_001
    assert not caplog.records


async def test_answers_requests_in_flight_before_a_refusal(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    said = await router.raw(POST + b"nonsense\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"400"]
