"""Answers that clients don't take: their bytes count in the shares of their owners, and whoever is behind pays."""

import asyncio
import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http import client_connection
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.limits import Limits
from engine_server.router.http.unread_answers import UnreadAnswers

POST = (
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 13\r\n\r\n{"model":"m"}'
)
BUFFER = "fairlead_router_buffer_bytes"
RESETS = r'fairlead_router_rejected_total\{reason="unread_answer",sender="client"\}'


class Reader:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        assert not self.aborted
        self.aborted = True


def unread_of(limit: int) -> tuple[BodyBudget, UnreadAnswers]:
    budget = BodyBudget(limit)
    return budget, UnreadAnswers(budget, lambda: None)


def test_the_connection_of_the_owner_that_is_behind_for_longest_is_reset_where_there_is_no_room():
    budget, unread = unread_of(1000)
    first, second, third, other = (Reader() for _ in range(4))
    unread.count("b", other, 50)
    for reader in (first, second):
        unread.count("a", reader, 300)
    unread.count("a", third, 300)
    assert first.aborted and not (second.aborted or third.aborted or other.aborted)
    assert budget.used == 650


def test_a_connection_that_has_more_unread_than_its_owner_may_have_is_reset():
    budget, unread = unread_of(1000)
    only = Reader()
    unread.count("a", only, 801)
    assert only.aborted and budget.used == 0


def test_there_is_room_for_unread_answers_beside_the_bodies_of_their_owner():
    budget, unread = unread_of(1000)
    assert budget.claim_now("a", budget.largest_body)
    reader = Reader()
    unread.count("a", reader, 100)
    assert not reader.aborted


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), max_size=60))
def test_what_is_counted_is_what_the_connections_have_that_are_not_reset(counts):
    budget, unread = unread_of(1000)
    readers = [Reader() for _ in range(5)]
    sizes = dict.fromkeys(readers, 0)
    for number, size in counts:
        reader = readers[number]
        if reader.aborted:
            continue
        if size:
            unread.count(number % 2, reader, size)
        else:
            unread.forget(number % 2, reader)
        sizes[reader] = size
        assert budget.used == sum(size for one, size in sizes.items() if not one.aborted) <= 1000
    for number, reader in enumerate(readers):
        unread.forget(number % 2, reader)
    assert budget.used == 0


def hours(**changed) -> Limits:
    """Return limits whose times no test reaches but for those that it shortens."""
    return Limits(**{"unread_seconds": 3600.0, "idle_seconds": 3600.0, "sweep_seconds": 0.02, **changed})


def answer(size: int):
    """Return the behavior of an engine that answers with so many bytes."""

    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 50_000):
            writer.write(bytes(50_000))
            await writer.drain()

    return behave


async def ask_without_reading(router, address: str = "127.0.0.1") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    client.bind((address, 0))
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", router.port))
    await loop.sock_sendall(client, POST)
    return client


async def read_all(client: socket.socket) -> int:
    """Return the number of bytes up to the end; a connection that is reset before it raises ConnectionResetError."""
    loop, size = asyncio.get_running_loop(), 0
    while size < 5_000_000:
        data = await loop.sock_recv(client, 1 << 20)
        if not data:
            break
        size += len(data)
    return size


async def test_clients_that_read_nothing_take_no_more_than_their_share(
    start_engine, start_router, eventually
):
    engine = await start_engine(answer(5_000_000))
    router = await start_router({"m": [engine]}, limits=hours(), buffer_bytes=4_000_000)
    neighbour = await ask_without_reading(router, "127.0.0.2")
    clients = [await ask_without_reading(router) for _ in range(30)]
    await eventually(lambda: len(engine.received) == 31)

    async def some_are_reset() -> bool:
        return await router.metric(RESETS) > 0

    await eventually(some_are_reset)
    assert 0 < await router.metric(BUFFER) <= 4_000_000
    assert await read_all(neighbour) >= 5_000_000
    for client in (neighbour, *clients):
        client.close()

    async def all_returned() -> bool:
        return await router.metric(BUFFER) == 0

    await eventually(all_returned)


async def test_an_answer_that_the_kernel_has_taken_counts_until_its_client_takes_it(
    start_engine, start_router, eventually
):
    engine = await start_engine(answer(50_000))
    router = await start_router({"m": [engine]}, limits=hours())
    client = await ask_without_reading(router)

    async def counted() -> bool:
        return await router.metric(BUFFER) > 10_000

    await eventually(counted)
    loop = asyncio.get_running_loop()
    size = 0
    while size < 50_000:
        size += len(await loop.sock_recv(client, 1 << 20))

    async def returned() -> bool:
        return await router.metric(BUFFER) == 0

    await eventually(returned)
    client.close()


async def test_a_client_that_takes_nothing_of_an_answer_that_the_kernel_has_is_reset(
    start_engine, start_router, eventually
):
    engine = await start_engine(answer(50_000))
    router = await start_router({"m": [engine]}, limits=hours(unread_seconds=0.3))
    client = await ask_without_reading(router)
    await eventually(lambda: engine.received)
    await eventually(lambda: not router.server._clients._open)
    assert await router.metric(RESETS) == 1
    client.close()


async def test_a_client_that_reads_too_slowly_is_reset(start_engine, start_router, eventually, monkeypatch):
    """It reads all the time, but less than it has to."""
    monkeypatch.setattr(client_connection, "LEAST_RATE", 1e12)
    engine = await start_engine(answer(500_000_000))
    router = await start_router({"m": [engine]}, limits=hours(unread_seconds=0.3))
    client = await ask_without_reading(router)
    loop = asyncio.get_running_loop()
    reset = asyncio.create_task(eventually(lambda: engine.received and not router.server._clients._open))
    with contextlib.suppress(ConnectionResetError):
        while not reset.done():
            await loop.sock_recv(client, 20_000)
            await asyncio.wait([reset], timeout=0.01)
    await reset
    assert await router.metric(RESETS) == 1
    client.close()
