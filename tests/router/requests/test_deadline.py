"""Deadlines of requests: the router keeps them while no engine has the request, and tells engines the rest."""

import asyncio
from math import inf
from time import perf_counter

import pytest
from resumable_streams import Stream, event
from waiting import until_async

from engine_server.contract.wire.deadline import TimeLeft
from engine_server.router.errors import RequestError
from engine_server.router.http.wire import Request
from engine_server.router.requests.deadline import read_deadline
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.requests.watch import WatchTimes

SECONDS = 0.05
# In which a stream begins on a busy machine.
PATIENT_SECONDS = 2.0


def request(header: bytes | None = None) -> Request:
    fields = {} if header is None else {b"x-request-timeout": header}
    return Request(b"POST", b"/v1/x", b"", fields, b"{}", http11=True, last=False, id=b"id", arrived=100.0)


@pytest.mark.parametrize(
    ("header", "body", "deadline"),
    [(None, inf, inf), (b"5", inf, 105.0), (None, 2.5, 102.5), (b"5", 2.5, 102.5), (b"0.5", 2.5, 100.5)],
)
def test_the_shorter_of_header_and_body_counts_from_the_first_byte(header, body, deadline):
    assert read_deadline(request(header), body) == deadline


@pytest.mark.parametrize("header", [b"soon", b"", b"0", b"-1", b"nan", b"inf", b"1, 2"])
def test_a_header_without_a_number_over_zero_is_refused(header):
    with pytest.raises(RequestError, match="a number of seconds over 0") as error:
        read_deadline(request(header), inf)
    assert error.value.status == 400


def test_an_engine_is_told_the_rest_and_never_zero():
    assert TimeLeft(4.0).line() == b"X-Request-Timeout: 4.000\r\n"
    assert TimeLeft(-1.0).line() == b"X-Request-Timeout: 0.001\r\n"


async def pass_deadline() -> None:
    end = perf_counter() + 2 * SECONDS
    await until_async(lambda: perf_counter() > end)


async def assert_timed_out(response) -> None:
    assert response.status == 504
    assert response.headers["x-should-retry"] == "false"
    assert (await response.json())["error"]["code"] == "request_timeout"


async def say_nothing(engine, request, writer):
    await asyncio.Event().wait()


async def say_nothing_more(engine, request, writer, number):
    await asyncio.Event().wait()


def rest(request) -> float:
    """Return the seconds that an engine was told, once."""
    (value,) = (value for name, value in request.headers if name.lower() == "x-request-timeout")
    return float(value)


@pytest.mark.parametrize("where", ["header", "body"])
async def test_a_request_that_waits_for_a_replica_ends_at_its_deadline(start_engine, start_router, where):
    router = await start_router({"m": [await start_engine(ready=False)]}, hold=HoldSettings())
    body = {"model": "m"} | ({"timeout": SECONDS} if where == "body" else {})
    headers = {"X-Request-Timeout": str(SECONDS)} if where == "header" else {}
    async with router.session.post(f"{router.url}/v1/completions", json=body, headers=headers) as response:
        await assert_timed_out(response)
    assert router.server._hold.count == 0


async def test_a_stream_that_waits_for_its_rest_ends_with_an_error_event_at_its_deadline(
    start_engine, start_router, eventually
):
    engine = await start_engine(Stream(1, failure=say_nothing_more))
    router = await start_router({"m": [engine]}, hold=HoldSettings())
    async with router.chat(stream=True, timeout=3600) as response:
        assert await response.content.readuntil(b"\n\n") == event(0)
        await engine.stop()
        await eventually(lambda: router.server._hold.count == 1)
        ((held,),) = (line for lines in router.server._hold._lines.values() for line in lines.values())

        held.deadline = 0.0  # as after an hour

        assert b'"code":"request_timeout"' in await response.content.readuntil(b"\n\n")
    assert await router.metric("fairlead_router_interrupted_total") == 1


async def test_an_upload_counts(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    reader, writer = await router.connect()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n")
    writer.write(b"X-Request-Timeout: %.3f\r\n\r\n" % SECONDS)
    await writer.drain()
    await pass_deadline()
    writer.write(b'{"model":"m"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 504 ")
    assert not engine.received
    writer.close()


async def test_no_other_replica_is_asked_after_the_deadline(start_engine, start_router):
    async def fail_late(engine, request, writer):
        await pass_deadline()
        writer.transport.abort()

    engines = [await start_engine(fail_late) for _ in range(2)]
    router = await start_router({"m": engines})
    async with router.chat(timeout=SECONDS) as response:
        await assert_timed_out(response)
    assert sum(len(engine.received) for engine in engines) == 1


async def test_each_replica_is_told_the_rest_of_the_shorter_timeout(start_engine, start_router):
    async def fail_later(engine, request, writer):
        end = perf_counter() + 0.01
        await until_async(lambda: perf_counter() > end)
        writer.transport.abort()

    engines = [await start_engine(fail_later) for _ in range(2)]
    router = await start_router({"m": engines})
    headers = {"X-Request-Timeout": "3600"}
    body = {"model": "m", "timeout": 1800.5}
    async with router.session.post(f"{router.url}/v1/completions", json=body, headers=headers) as response:
        assert response.status == 503

    received = sorted((request for engine in engines for request in engine.received), key=rest, reverse=True)
    first, second = received
    assert 1800.5 >= rest(first) > rest(second) > 0
    assert b"1800.5" in first.body


async def test_an_engine_is_told_no_timeout_that_the_client_has_not(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    async with router.chat(timeout="1") as response:  # which engines refuse
        assert response.status == 200
    assert engine.received[0].header("X-Request-Timeout") is None


async def test_an_engine_may_end_its_answer_a_little_later(start_engine, start_router):
    async def end_at_deadline(engine, request, writer):
        await pass_deadline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    router = await start_router({"m": [await start_engine(end_at_deadline)]}, watch=WatchTimes(sweep=0.01))
    async with router.chat(timeout=SECONDS) as response:
        assert (response.status, await response.read()) == (200, b"ok")


async def test_an_engine_that_says_nothing_at_the_deadline_is_not_waited_for(start_engine, start_router):
    engines = [await start_engine(say_nothing) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.01, grace=0.02))
    async with router.chat(timeout=SECONDS) as response:
        await assert_timed_out(response)
    assert sum(len(engine.received) for engine in engines) == 1
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 0


async def test_a_stream_that_says_nothing_at_the_deadline_ends_with_an_error_event(
    start_engine, start_router
):
    engines = [await start_engine(Stream(1, failure=say_nothing_more)) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.01, grace=0.02))
    async with router.chat(stream=True, timeout=PATIENT_SECONDS) as response:
        assert await response.content.readuntil(b"\n\n") == event(0)
        assert b'"code":"request_timeout"' in await response.content.readuntil(b"\n\n")
    assert sum(len(engine.received) for engine in engines) == 1


async def test_a_timeout_that_is_no_number_is_refused_as_by_an_engine(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    headers = {"X-Request-Timeout": "soon"}
    async with router.session.post(
        f"{router.url}/v1/completions", json={"model": "m"}, headers=headers
    ) as response:
        assert response.status == 400
        assert "it takes a number of seconds" in (await response.json())["error"]["message"]
    assert not engine.received
