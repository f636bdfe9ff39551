"""When an engine fails: another answers, or the client sees that the answer is not whole."""

import json

import pytest

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def slam(engine, request, writer):
    writer.transport.abort()


async def unavailable(engine, request, writer):
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
    await writer.drain()
    writer.close()


# Another replica answers


async def test_a_replica_that_is_gone_is_left_out_and_comes_back(start_engine, start_router, eventually):
    one, two = await start_engine(), await start_engine()
    router = await start_router({"m": [one, two]})
    await one.stop()
    for _ in range(20):
        async with router.chat() as response:
            assert (await response.json())["port"] == two.port
    assert await router.metric("fairlead_router_ejections_total") == 1
    assert await router.metric(r'fairlead_router_retries_total\{reason="unreachable"\}') == 1
    await one.start()

    async def used_again() -> bool:
        async with router.chat() as response:
            return (await response.json())["port"] == one.port

    await eventually(used_again)


async def test_a_connection_closed_before_a_byte_is_tried_elsewhere(start_engine, start_router):
    bad, good = await start_engine(slam), await start_engine()
    router = await start_router({"m": [bad, good]})
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received
    assert await router.metric("fairlead_router_in_flight") == 0


async def test_a_503_is_tried_elsewhere(start_engine, start_router):
    bad, good = await start_engine(unavailable, ready=True), await start_engine()
    router = await start_router({"m": [bad, good]})
    bad.ready = False
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert len(bad.received) == 1


async def test_the_last_replicas_own_503_reaches_the_client(start_engine, start_router):
    router = await start_router({"m": [await start_engine(unavailable)]})
    async with router.chat() as response:
        assert (response.status, await response.read()) == (503, b"busy")


async def test_a_kept_connection_that_the_engine_closed_is_made_good(start_engine, start_router):
    """The engine answers, keeps the connection, and closes it as the next request arrives."""

    async def behave(engine, request, writer):
        served = getattr(writer, "served", 0)
        writer.served = served + 1
        if served:
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for _ in range(10):
        async with router.chat() as response:
            assert response.status == 200
    assert engine.connections == 10


async def test_a_request_that_engines_die_of_does_not_visit_them_all(start_engine, start_router):
    engines = [await start_engine(slam) for _ in range(8)]
    router = await start_router({"m": engines})
    async with router.chat() as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "no_answer"
    assert sum(len(engine.received) for engine in engines) == 3


async def test_nor_where_connections_were_kept_and_the_engines_really_die(start_engine, start_router):
    async def behave(engine, request, writer):
        if b"poison" in request.body:
            await engine.stop()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engines = [await start_engine(behave) for _ in range(6)]
    router = await start_router({"m": engines}, policy="round_robin")
    for _ in engines:
        async with router.chat() as response:
            assert response.status == 200
    async with router.chat(prompt="poison") as response:
        assert response.status == 502
    assert sum(engine.server is None for engine in engines) == 3
    async with router.chat() as response:
        assert response.status == 200


async def test_an_engine_that_does_not_speak_http(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 503


async def test_what_follows_an_answer_is_not_the_next_ones(start_engine, start_router):
    """An engine says more than it was asked for, and not all of it at once: its connection is not used again."""

    async def behave(engine, request, writer):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%b" % request.body[-4:-2]
        writer.write(answer + b"HTTP/1.1 200 OK\r\nX-Left: over\r\nX-More: ")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for n in ("11", "22", "33"):
        async with router.chat(n=n) as response:
            assert await response.read() == n.encode()
            assert "X-Left" not in response.headers
    assert engine.connections == 3


# No retry once the client has a byte


async def test_a_stream_that_breaks_ends_with_an_error_event(start_engine, start_router):
    async def behave(engine, request, writer):
        event = b'data: {"n": 1}\n\ndata: {"n'
        writer.write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.transport.abort()

    one, two = await start_engine(behave), await start_engine(behave)
    router = await start_router({"m": [one, two]})
    async with router.chat(stream=True) as response:
        events = (await response.read()).decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events[:1]] == [{"n": 1}]
    error = json.loads(events[1].removeprefix("data: "))["error"]
    assert error["code"] == "interrupted" and set(error) == {"message", "type", "param", "code"}
    assert events[2:] == [""]
    assert len(one.received) + len(two.received) == 1
    assert await router.metric("fairlead_router_interrupted_total") == 1
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_whole_answer_that_breaks_is_seen_to_be_broken(start_engine, start_router, framing):
    async def behave(engine, request, writer):
        body = b"5\r\nhello\r\n" if b"chunked" in framing else b"hello"
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (framing, body))
        await writer.drain()
        writer.transport.abort()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    said = await router.raw(POST)
    assert said.startswith(b"HTTP/1.1 200") and b"hello" in said and not said.endswith(b"0\r\n\r\n")
    assert len(engine.received) == 1
