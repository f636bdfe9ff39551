"""A request's way to an engine and back, over real sockets."""

import asyncio
import json

import pytest


def sse(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_an_answer_comes_back_as_the_engine_gave_it(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 201 Made It\r\nContent-Type: text/x\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Fairlead-Load: running=1\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nConnection: keep-alive, X-Hop\r\n"
            b"Content-Length: 4\r\n\r\n\x00\xffab"
        )

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert (response.status, response.reason) == (201, "Made It")
        assert await response.read() == b"\x00\xffab"
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert not {"Fairlead-Load", "Keep-Alive", "X-Hop"} & set(response.headers)


async def test_a_request_reaches_the_engine_as_the_client_gave_it(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    body = b'{"messages": [], "unknown": {"model": "other"}, "model" : "m"}'
    headers = {
        "Authorization": "Bearer sk-1",
        "X-Request-Id": "7",
        "Fairlead-Report-Tokens": "1",
        "TE": "trailers",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
    }
    async with router.session.post(f"{router.url}/v1/embeddings?a=b", data=body, headers=headers) as response:
        assert response.status == 200
    (got,) = engine.received
    assert (got.method, got.path, got.body) == ("POST", "/v1/embeddings?a=b", body)
    assert got.header("Authorization") == "Bearer sk-1"
    assert got.header("X-Request-Id") == "7"
    assert got.header("Host") == f"127.0.0.1:{router.port}"
    assert not any(got.header(name) for name in ("Fairlead-Report-Tokens", "TE", "Connection", "X-Hop"))


async def test_a_stream_is_passed_on_chunk_by_chunk(start_engine, start_router):
    """The engine makes its second chunk only once the client has the first."""
    client_has_first = asyncio.Event()

    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one"))
        await client_has_first.wait()
        writer.write(sse("two") + b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        client_has_first.set()
        assert await response.content.read() == b"data: two\n\n"


@pytest.mark.parametrize(
    "pieces", [[b"data: a\n", b"\ndata: b\n\n"], [b"data: a\r\n\r\nda", b"ta: b\r\n\r\n"], [b"data: tail"]]
)
async def test_events_cut_anywhere_arrive_whole(start_engine, start_router, pieces):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat(stream=True) as response:
        assert await response.read() == b"".join(pieces)


async def test_connections_to_the_engine_are_kept(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    for _ in range(20):
        async with router.chat() as response:
            assert response.status == 200
    assert engine.connections == 1


async def test_an_engine_that_closes_after_each_answer_is_served_too(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for _ in range(5):
        async with router.chat() as response:
            assert await response.read() == b"ok"
    assert engine.connections == 5


async def test_an_answer_without_a_length_ends_with_the_connection(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil ")
        await writer.drain()
        writer.write(b"the end")
        await writer.drain()
        writer.close()

    router = await start_router({"m": [await start_engine(behave)]})
    for _ in range(2):
        async with router.chat() as response:
            assert await response.read() == b"until the end"


async def test_interim_answers_are_not_the_answer(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for _ in range(2):
        async with router.chat() as response:
            assert (response.status, response.reason) == (204, "No Content")
            assert "Link" not in response.headers
    assert engine.connections == 1


async def test_a_large_stream_waits_for_a_slow_client(start_engine, start_router, eventually):
    """The router holds the engine back: it never takes in much more than the client has read."""
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
    writer.write(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{"model":"m"}')
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


async def test_chunked_request_bodies(start_engine, start_router):
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
        requests.append(b"POST /v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (last, len(body), body))
    said = await router.raw(b"".join(requests))
    assert [part.split(b"<")[-1] for part in said.split(b">")[:-1]] == [b"%d" % n for n in range(50)]


async def test_http_10_gets_plain_bytes_and_a_close(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one") + sse("two") + b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    said = await router.raw(b'POST /v1/completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"model":"m"}')
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"Connection: close" in head and b"chunked" not in head
    assert body == b"data: one\n\ndata: two\n\n"


async def test_connection_close_is_honoured(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    said = await router.raw(
        b'POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    assert said.startswith(b"HTTP/1.1 200") and b"\r\nConnection: close\r\n" in said


async def test_expect_100_continue(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    reader, writer = await router.connect()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"model":"m"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_an_offer_of_http2_is_declined_and_the_body_kept(start_engine, start_router):
    """Java's client offers h2c with its first request."""
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    head = b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    reader, writer = await router.connect()
    writer.write(head + b'HTTP2-Settings: AAMA\r\nContent-Length: 13\r\n\r\n{"mod')
    writer.write(b'el":"m"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert engine.received[0].body == b'{"model":"m"}'
    assert engine.received[0].header("Upgrade") is None
    writer.close()


async def test_the_absolute_form_of_a_target(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    said = await router.raw(
        b"POST http://any.where/v1/completions?q=1 HTTP/1.1\r\nHost: any.where\r\nConnection: close\r\n"
        b'Content-Length: 13\r\n\r\n{"model":"m"}'
    )
    assert said.startswith(b"HTTP/1.1 200")
    assert engine.received[0].path == "/v1/completions?q=1"


async def test_a_client_that_hangs_up_hangs_up_on_the_engine(start_engine, start_router, eventually):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one"))
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    response = await router.chat(stream=True)
    await response.content.readuntil(b"\n\n")
    assert await router.metric("fairlead_router_in_flight") == 1
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 1
    response.close()
    await asyncio.wait_for(engine.hung_up.wait(), 10)

    async def nothing_under_way() -> bool:
        total = await router.metric("fairlead_router_in_flight")
        return total + await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0

    await eventually(nothing_under_way)


async def test_a_client_that_hangs_up_before_the_answer_hangs_up_on_the_engine(
    start_engine, start_router, eventually
):
    async def behave(engine, request, writer):
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    _, writer = await router.connect()
    writer.write(b'POST /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"model":"m"}')
    await eventually(lambda: engine.received)
    writer.close()
    await asyncio.wait_for(engine.hung_up.wait(), 10)

    async def counted() -> bool:
        return await router.metric(r'fairlead_router_requests_total\{code="499",model="m"\}') == 1

    await eventually(counted)
    assert await router.metric("fairlead_router_in_flight") == 0
