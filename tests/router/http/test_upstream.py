"""Connections to engines: reuse, and the ways in which engines frame an answer."""

import asyncio

import msgspec
import pytest

from engine_server.router.http.exchange import Exchange
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
