"""Connections to engines: reuse, and the ways in which engines frame an answer."""

import asyncio
import socket

import msgspec
import pytest
from resumable_streams import Stream, event

from engine_server.router.http.exchange import Exchange
from engine_server.router.http.transport import IMPATIENT, PATIENT, LossTimes
from engine_server.router.http.upstream import EngineConnection, Pool
from engine_server.router.http.wire import Request
from engine_server.router.routing.endpoint import Address


async def test_reuses_the_connection_to_an_engine(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    for _ in range(20):
        async with router.chat() as response:
            assert response.status == 200
    assert engine.connections == 1


async def test_the_loss_of_a_node_is_noticed_early_while_a_stream_arrives_and_later_on_a_kept_connection(
    start_engine, start_router, eventually
):
    may_end = asyncio.Event()

    async def wait(engine, request, writer, number):
        await may_end.wait()

    def times(transport) -> LossTimes:
        sock = transport.get_extra_info("socket")
        idle, interval, unacknowledged = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        )
        return LossTimes(idle, interval, unacknowledged // 1000)

    router = await start_router({"m": [await start_engine(Stream(1, failure=wait))]})
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == event(0)
        (relay,) = router.server._watch.open
        await eventually(lambda: times(relay.exchange.source) == IMPATIENT)
        may_end.set()
        await response.read()

    (pool,) = router.server._pools.values()
    await eventually(lambda: pool._idle)
    assert times(pool._idle[0].transport) == PATIENT


async def test_opens_a_new_connection_when_the_engine_closes_after_each_answer(start_engine, start_router):
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


async def test_an_answer_without_a_length_ends_when_the_engine_closes(start_engine, start_router):
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


async def test_ignores_interim_answers(start_engine, start_router):
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


async def test_sends_a_request_again_when_a_kept_connection_closes_unanswered(start_engine, start_router):
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


async def test_bytes_after_an_answer_do_not_reach_the_next_exchange(start_engine, start_router):
    """An engine sends more than one answer, and the rest later: its connection is not used again."""

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


class DeferredExchange(Exchange):
    """An exchange that the test resumes itself, later than an idle event loop would."""

    wakes: list[object] = msgspec.field(default_factory=list)

    def resume(self, wait):
        self.wakes.append(wait)


class WatchedPool(Pool):
    """A pool that reports the loss of a connection."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.lost = asyncio.Event()

    def discard(self, connection: EngineConnection) -> None:
        super().discard(connection)
        self.lost.set()


async def test_a_new_connection_that_is_closed_before_its_use_is_an_error(eventually):
    """Its loss has been reported already: a request sent on it would wait for an answer forever."""
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    pool = WatchedPool(Address(*server.sockets[0].getsockname()))
    exchange = DeferredExchange(
        None, Request(b"POST", b"/v1/completions", b"", {}, bytearray(), True, False, b"id")
    )
    opening = pool.connect(exchange).__await__()
    next(opening)
    await eventually(lambda: exchange.wakes and accepted)

    accepted[0].transport.abort()
    await pool.lost.wait()

    with pytest.raises(OSError, match="closed"):
        next(opening)
    server.close()


ENDLESS = {
    "fields": b"HTTP/1.1 200 OK\r\n" + b"X-Padding: %b\r\n" % (b"x" * 1000) * 400,
    "fields that are read": b"HTTP/1.1 200 OK\r\n" + b"Connection: %b\r\n" % (b"x" * 1000) * 400,
    "one field": b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 400_000,
    "reason": b"HTTP/1.1 200 " + b"O" * 400_000,
    "interim answers": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 10_000,
}


@pytest.mark.parametrize("start", ENDLESS.values(), ids=ENDLESS.keys())
async def test_an_endless_head_is_a_failed_answer(start_engine, start_router, start):
    async def behave(engine, request, writer):
        writer.write(start)
        await asyncio.Event().wait()

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 503  # there is no other replica
    assert (
        await router.metric(r'fairlead_router_rejected_total\{reason="head_too_large",sender="engine"\}') >= 1
    )


async def test_a_head_with_too_many_fields_is_a_failed_answer(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + b"X-A: b\r\n" * 129 + b"\r\nok")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 503  # there is no other replica


async def test_endless_trailers_break_an_answer_off(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
        writer.write(b"Connection: x\r\n" * 40_000)
        await asyncio.Event().wait()

    router = await start_router({"m": [await start_engine(behave)]})
    answer = await router.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n"
        + b'{"model":"m"}'
    )
    assert answer.endswith(b"ok\r\n")  # without the last chunk
    assert (
        await router.metric(r'fairlead_router_rejected_total\{reason="head_too_large",sender="engine"\}') == 1
    )


async def test_trailers_are_dropped(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Late: 1\r\n\r\n"
        )

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for _ in range(2):
        async with router.chat() as response:
            assert await response.read() == b"ok"
            assert "X-Late" not in response.headers
    assert engine.connections == 1


async def test_a_long_name_of_a_model_is_not_kept(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nFairlead-Model: %b\r\n\r\nok" % (b"x" * 65))

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 200
    async with router.internal("/internal/endpoints") as response:
        assert "x" * 65 not in await response.text()
    assert (
        await router.metric(r'fairlead_router_rejected_total\{reason="out_of_range",sender="engine"\}') == 1
    )
