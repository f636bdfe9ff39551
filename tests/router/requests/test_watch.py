"""The watch: attempts whose engine is silent, and says nothing to probes either."""

import asyncio

import pytest

from engine_server.router.requests.watch import WatchTimes

POST = (
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    b'Host: localhost\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
)
TIMES = WatchTimes(sweep=0.01, silence=0.03, probe_interval=0.01, probe_timeout=0.05, refusal=0.05)


async def say_nothing(engine, request, writer):
    await asyncio.Event().wait()


async def test_retries_on_another_replica_when_an_engine_answers_neither_requests_nor_probes(
    start_engine, start_router, eventually
):
    stopped, good = await start_engine(say_nothing), await start_engine()
    router = await start_router({"m": [stopped, good]}, policy="round_robin", watch=TIMES)
    stopped.mute = True

    for _ in range(4):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port

    assert len(stopped.received) == 1
    await eventually(stopped.hung_up.is_set)
    assert await router.metric(r'fairlead_router_retries_total\{reason="silent"\}') == 1
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 1


async def test_sends_no_request_again_to_an_engine_that_was_silent_on_a_kept_connection(
    start_engine, start_router
):
    async def behave(engine, request, writer):
        if engine.mute:
            await asyncio.Event().wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    async with router.chat() as response:
        assert response.status == 200
    engine.mute = True

    async with router.chat() as response:
        assert response.status == 503
    assert len(engine.received) == 2


@pytest.mark.parametrize("ready", [True, False])
async def test_waits_for_an_engine_that_answers_probes_with_any_status(
    start_engine, start_router, eventually, ready
):
    """A 503 of `/ready` is an answer as well: an engine that drains finishes what it has."""
    probed_often = asyncio.Event()

    async def behave(engine, request, writer):
        engine.ready = ready
        probes = engine.probes
        await eventually(lambda: engine.probes >= probes + 6)
        probed_often.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    async with router.chat() as response:
        assert await response.read() == b"ok"
    assert probed_often.is_set() and len(engine.received) == 1


async def test_an_answer_that_stays_silent_after_its_first_bytes_is_cut(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    engine.mute = True

    answer = await router.raw(POST)

    assert answer.endswith(b"\r\n\r\nhalf")
    assert await router.metric("fairlead_router_interrupted_total") == 1


async def test_does_not_probe_the_engine_of_a_client_that_reads_slowly(
    start_engine, start_router, eventually
):
    """Its answer makes no progress, but the engine is not the cause. The probes of another engine show the time."""
    size = 2**25

    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)

    engine, silent = await start_engine(behave), await start_engine(say_nothing)
    router = await start_router({"m": [engine], "silent": [silent]}, watch=TIMES)
    probes = engine.probes
    reader, writer = await router.connect()
    reader._transport.pause_reading()  # asyncio's own reader would take everything
    writer.write(POST)
    await eventually(lambda: engine.received)
    _, silent_writer = await router.connect()
    silent_writer.write(POST.replace(b'"m"', b'"silent"').replace(b"13", b"18"))
    await eventually(lambda: silent.probes > 10)

    assert engine.probes == probes
    reader._transport.resume_reading()
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(await reader.readexactly(size)) == size
    writer.close()
    silent_writer.close()


async def test_retries_without_the_rest_of_an_error_that_stays_silent(start_engine, start_router, eventually):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\n")
        await asyncio.Event().wait()

    bad, good = await start_engine(behave), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin", watch=TIMES)
    bad.ready = False
    for _ in range(2):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    await eventually(bad.hung_up.is_set)
    assert await router.metric(r'fairlead_router_retries_total\{reason="refused"\}') == 1
