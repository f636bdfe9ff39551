"""Limits of time and memory on the connections of clients."""

import asyncio
import contextlib
import ipaddress
import json
import socket
from time import perf_counter

import pytest
from waiting import until

from engine_server.router.http.limits import Limits

HEAD = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
POST = HEAD + b'Content-Length: 13\r\n\r\n{"model":"m"}'
PIECE = b"x" * 65_536


def limits(**changed) -> Limits:
    """Return limits on time that the test never reaches, but for those that it shortens."""
    hours = dict.fromkeys(
        ("head_seconds", "piece_seconds", "body_seconds", "room_seconds", "unread_seconds", "idle_seconds"),
        3600.0,
    )
    times = {"sweep_seconds": 0.02, "late_seconds": 0.1, "linger_seconds": 0.05}
    return Limits(**{**hours, **times, **changed})


async def endless(engine, request, writer):
    """Answer with bytes for as long as they are read."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    try:
        while True:
            writer.write(PIECE)
            await writer.drain()
    finally:
        engine.hung_up.set()


async def held(engine, request, writer):
    """Answer nothing."""
    await asyncio.Event().wait()


async def read_nothing(router) -> socket.socket:
    """Send a request over a connection with a small buffer, and return it without reading from it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", router.port))
    await loop.sock_sendall(client, POST)
    return client


@pytest.mark.parametrize(
    ("sent", "limit", "words"),
    [
        (HEAD, {"head_seconds": 0.1}, "The request's head did not arrive within 0.1 s"),
        (HEAD + b"Content-Length: 9\r\n\r\n{", {"body_seconds": 0.1}, "The request's body did not arrive"),
        (
            HEAD + b"Content-Length: 9\r\n\r\n{",
            {"piece_seconds": 0.1},
            "The next piece of the request's body",
        ),
        (HEAD + b"Content-Length: 9\r\n\r\n", {"piece_seconds": 0.1}, "The next piece of the request's body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", {"piece_seconds": 0.1}, "The next piece"),
    ],
    ids=["head", "body", "piece", "first piece", "first chunk"],
)
async def test_refuses_a_request_that_arrives_too_slowly(start_router, sent, limit, words):
    router = await start_router(limits=limits(**limit))
    answer = await router.raw(sent)
    assert (
        answer.startswith(b"HTTP/1.1 408")
        and words in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    )
    assert await router.metric(r'fairlead_router_requests_total\{code="408",model=""\}') == 1


async def test_pieces_of_a_head_do_not_extend_its_time(start_router):
    router = await start_router(limits=limits(head_seconds=0.2))
    reader, writer = await router.connect()
    writer.write(HEAD)
    answered = asyncio.create_task(reader.readline())
    while not answered.done():
        writer.write(b"X: y\r\n")
        await asyncio.wait([answered], timeout=0.01)
    assert answered.result().startswith(b"HTTP/1.1 408")
    writer.close()


async def test_pieces_of_a_body_extend_the_time_for_the_next_one(start_engine, start_router):
    """The body takes many times as long as the limit between two pieces."""
    engine = await start_engine()
    router = await start_router({"m": [engine]}, limits=limits(piece_seconds=0.5))
    reader, writer = await router.connect()
    writer.write(HEAD + b"Content-Length: 113\r\n\r\n")
    answered = asyncio.create_task(reader.readline())
    for byte in b'{"model":"m"}' + b" " * 100:
        writer.write(bytes([byte]))
        await asyncio.wait([answered], timeout=0.01)
    assert (await answered).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_pipelined_request_is_not_late_while_the_one_before_is_answered(start_engine, start_router):
    """The router does not read it then."""
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, limits=limits(head_seconds=0.3, piece_seconds=0.3))
    reader, writer = await router.connect()
    writer.write(POST + POST + POST[:-3])
    await asyncio.sleep(0)
    probe = await router.connect()
    for _ in range(2):  # twice as long as the limit
        probe[1].write(HEAD)
        assert (await probe[0].readline()).startswith(b"HTTP/1.1 408")
        probe[1].close()
        probe = await router.connect()
    probe[1].close()
    release.set()
    for _ in range(2):
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    writer.write(POST[-3:])
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    ("limit", "before"),
    [
        ("head_seconds", HEAD),
        pytest.param("piece_seconds", POST[:-3], marks=pytest.mark.more),
        pytest.param("body_seconds", POST[:-3], marks=pytest.mark.more),
        ("idle_seconds", b""),
    ],
    ids=["head", "piece", "body", "idle"],
)
async def test_no_request_is_late_because_the_loop_was_blocked(
    start_engine, start_router, eventually, limit, before
):
    """Its rest arrives when the times are over, and before the router reads it."""
    seconds = 0.5
    router = await start_router({"m": [await start_engine()]}, limits=limits(**{limit: seconds}))
    reader, writer = await router.connect()
    writer.write(before)
    await eventually(lambda: router.server._clients._open)
    (client,) = router.server._clients._open
    await eventually(lambda: client._reader.receiving or not before)
    # Called after the block, as the next sweep is.
    asyncio.get_running_loop().call_later(0.001, writer.write, POST[len(before) :])
    end = perf_counter() + 2 * seconds

    until(lambda: perf_counter() > end)

    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_closes_idle_connections_and_no_busy_ones(start_engine, start_router):
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    router = await start_router({"m": [await start_engine(behave)]}, limits=limits(idle_seconds=0.1))
    busy, busy_writer = await router.connect()
    busy_writer.write(POST)
    reader, writer = await router.connect()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    release.set()
    assert (await busy.readline()).startswith(b"HTTP/1.1 200")
    busy_writer.close()


async def test_disconnects_a_client_that_reads_nothing(start_engine, start_router, eventually):
    engine = await start_engine(endless)
    router = await start_router({"m": [engine]}, limits=limits(unread_seconds=0.3))
    client = await read_nothing(router)
    await asyncio.wait_for(engine.hung_up.wait(), 60)
    assert await router.metric("fairlead_router_in_flight") == 0
    client.close()


async def test_a_client_that_reads_slowly_is_not_disconnected(start_engine, start_router):
    """It reads far less than the kernel buffers, but goes on for several times the limit."""
    engine = await start_engine(endless)
    router = await start_router({"m": [engine]}, limits=limits(unread_seconds=0.5))
    client = await read_nothing(router)
    loop = asyncio.get_running_loop()
    disconnected = asyncio.create_task(engine.hung_up.wait())
    for _ in range(40):
        assert await loop.sock_recv(client, 20_000)
        await asyncio.wait([disconnected], timeout=0.05)
    assert not disconnected.done()
    client.close()
    await asyncio.wait_for(engine.hung_up.wait(), 60)


async def test_a_client_that_reads_nothing_does_not_hold_a_drain(start_engine, start_router):
    engine = await start_engine(endless)
    router = await start_router({"m": [engine]}, limits=limits(unread_seconds=0.3), drain_timeout=3600.0)
    client = await read_nothing(router)
    router.server.leave(0.0)
    await asyncio.wait_for(engine.hung_up.wait(), 60)
    client.close()


# Memory


def large(size: int) -> bytes:
    return b'{"model":"m","prompt":"%b"}' % (b"x" * (size - 25))


async def send_large(router, size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await router.connect()
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size + large(size))
    return reader, writer


async def test_bodies_wait_until_others_leave_room(start_engine, start_router, eventually):
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, limits=limits(), buffer_bytes=6_500_000)
    clients = [await send_large(router, 2_000_000) for _ in range(4)]
    await eventually(lambda: len(engine.received) == 2)
    async with router.get("/health") as response:  # requests without a body go on
        assert response.status == 200
    assert len(engine.received) == 2
    release.set()
    for reader, writer in clients:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert [len(request.body) for request in engine.received] == [2_000_000] * 4


async def test_a_body_that_finds_no_room_in_time_gets_503(start_engine, start_router, eventually):
    engine = await start_engine(held)
    router = await start_router({"m": [engine]}, limits=limits(room_seconds=0.1), buffer_bytes=4_000_000)
    first = await send_large(router, 2_000_000)
    await eventually(lambda: len(engine.received) == 1)
    for _ in range(3):
        reader, writer = await send_large(router, 2_000_000)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"\r\nRetry-After: 1\r\n" in head
        assert b'"buffer_full"' in await reader.read()
        writer.close()
    assert await router.metric(r'fairlead_router_requests_total\{code="503",model=""\}') == 3
    first[1].close()
    await asyncio.wait_for(engine.hung_up.wait(), 60)
    again = await send_large(router, 2_000_000)
    await eventually(lambda: len(engine.received) == 2)
    again[1].close()


async def test_room_returns_however_requests_end(start_engine, start_router, eventually):
    """Clients leave while they send, while they wait for room, while they are answered; others are refused."""
    engine = await start_engine(held)
    router = await start_router(
        {"m": [engine]}, limits=limits(room_seconds=0.1, body=2_500_000), buffer_bytes=4_000_000
    )
    for _ in range(20):
        half = await router.connect()
        half[1].write(HEAD + b"Content-Length: 2000000\r\n\r\n" + large(1_000_000))
        invalid = await router.connect()
        invalid[1].write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000\r\n" + PIECE + b"\r\nzz\r\n")
        clients = [await send_large(router, 2_000_000) for _ in range(3)]
        assert b"400" in await invalid[0].readline()
        for _, writer in (half, invalid, *clients):
            writer.transport.abort()
    engine.behave = answer_ok

    async def has_room() -> bool:
        reader, writer = await send_large(router, 2_500_000)
        status = await reader.readline()
        writer.close()
        return status.startswith(b"HTTP/1.1 200")

    await eventually(has_room)


async def answer_ok(engine, request, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_a_body_larger_than_what_one_sender_gets_of_the_buffer_is_too_large(start_router):
    router = await start_router(buffer_bytes=1000)
    answer = await router.raw(HEAD + b"Content-Length: 701\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"700 bytes" in answer


@pytest.mark.parametrize(
    "before", [b"3\r\nabc\r\n0\r\nX: ", b"3\r\nabc\r\n3;x="], ids=["trailer", "extension"]
)
async def test_refuses_an_endless_trailer_or_chunk_extension(start_router, before):
    router = await start_router()
    reader, writer = await router.connect()
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    writer.write(before)
    writer.write(PIECE * 16)
    assert (await reader.readline()).startswith(b"HTTP/1.1 431")
    writer.close()


@pytest.mark.more
async def test_pipelined_requests_count_as_memory_until_they_are_answered(start_router, eventually):
    """Thousands of requests that are answered at once, for a client that reads none of the answers and then all."""
    router = await start_router(limits=limits())
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=4096)
    count, request = 20_000, b"GET /v1/models HTTP/1.1\r\n\r\n"
    writer.write(request * (count - 1) + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    async def counted() -> bool:
        return await router.metric("fairlead_router_buffer_bytes") > 65_536

    await eventually(counted)
    answers = await reader.read(-1)
    assert answers.count(b"HTTP/1.1 200") == count
    writer.close()

    async def released() -> bool:
        return await router.metric("fairlead_router_buffer_bytes") == 0

    await eventually(released)


async def test_pipelined_requests_wait_where_memory_is_short(start_engine, start_router, eventually):
    engine = await start_engine(held)
    router = await start_router({"m": [engine]}, limits=limits(room_seconds=0.1), buffer_bytes=3_000_000)
    first = await send_large(router, 2_090_000)
    await eventually(lambda: len(engine.received) == 1)
    answer = await router.raw(b"GET /health HTTP/1.1\r\n\r\n" * 8_000)
    assert answer.startswith(b"HTTP/1.1 503") and b'"buffer_full"' in answer
    async with router.get("/health") as response:
        assert response.status == 200
    first[1].close()


# Connections


async def keep(router, port: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that is kept after an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port or router.port)
    await ask(reader, writer)
    return reader, writer


async def ask(reader, writer) -> None:
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))


async def test_the_longest_idle_connection_is_closed_for_a_new_one(start_router):
    router = await start_router(limits=limits(connections=3))
    clients = [await keep(router) for _ in range(3)]
    await ask(*clients[0])
    newest = await keep(router)
    assert await clients[1][0].read() == b""
    for client in (clients[0], clients[2], newest):
        await ask(*client)
    assert (
        await router.metric('fairlead_router_rejected_total{reason="idle_connection",sender="client"}') == 1
    )
    for _, writer in (*clients, newest):
        writer.close()


async def test_a_new_connection_waits_while_all_others_are_busy(start_engine, start_router, eventually):
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, limits=limits(connections=2))
    busy = [await router.connect() for _ in range(2)]
    for _, writer in busy:
        writer.write(POST)
    await eventually(lambda: len(engine.received) == 2)
    waiting = asyncio.create_task(keep(router))
    clients = router.server._clients
    await eventually(lambda: clients._places._on_free is not None)
    assert len(clients._open) == 2 and not waiting.done()
    async with router.internal("/metrics") as response:  # has places of its own
        assert response.status == 200
    release.set()
    (await waiting)[1].close()
    for _, writer in busy:
        writer.close()


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"], ids=["head", "body"])
async def test_a_connection_is_not_idle_while_a_request_arrives(start_router, sent):
    router = await start_router(limits=limits(connections=2))
    reader, writer = await router.connect()
    writer.write(sent)
    for _ in range(3):  # each takes the place of the one before
        await keep(router)
    writer.write(b"\r\n" if sent is HEAD else b'"m":"x"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    writer.close()


async def test_callers_that_come_at_once_are_all_answered_where_idle_connections_hold_all_places(
    start_router,
):
    router = await start_router(limits=limits(connections=6))
    idle = [await keep(router) for _ in range(6)]
    newcomers = await asyncio.gather(*(keep(router) for _ in range(6)))
    for _, writer in (*idle, *newcomers):
        writer.close()


async def test_callers_that_come_at_once_are_all_answered_where_one_place_is_not_busy(
    start_engine, start_router, eventually
):
    engine = await start_engine(held)
    router = await start_router({"m": [engine]}, limits=limits(connections=3))
    busy = [await router.connect() for _ in range(2)]
    for _, writer in busy:
        writer.write(POST)
    await eventually(lambda: len(engine.received) == 2)
    idle = await keep(router)
    newcomers = await asyncio.gather(*(keep(router) for _ in range(6)))
    for _, writer in (*busy, idle, *newcomers):
        writer.close()


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"], ids=["head", "body"])
async def test_unfinished_requests_of_one_address_keep_nobody_out(start_router, eventually, sent):
    router = await start_router(limits=limits(connections=4))
    clients = router.server._clients
    unfinished = [await router.connect() for _ in range(4)]
    for _, writer in unfinished:
        writer.write(sent)
    await eventually(lambda: sum(client._reader.receiving for client in clients._open) == 4)
    _, writer = await asyncio.wait_for(keep(router), 60)
    assert len(clients._open) == 4
    for _, one in (*unfinished, (None, writer)):
        one.close()


async def test_clients_behind_a_trusted_proxy_have_their_own_addresses(start_router):
    """The proxy has most connections, and the client that has most of them makes room."""
    network = ipaddress.ip_network("127.0.0.0/8")
    router = await start_router(limits=limits(connections=4), trusted_proxies=[network])

    async def keep_for(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await router.connect()
        writer.write(b"GET /health HTTP/1.1\r\nX-Forwarded-For: %b\r\n\r\n" % address.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
        return reader, writer

    lone = await keep_for("192.0.2.1")
    many = [await keep_for("192.0.2.2") for _ in range(3)]
    newest = await keep_for("192.0.2.3")
    assert await many[0][0].read() == b""
    for reader, writer in (lone, *many[1:], newest):
        await ask(reader, writer)
        writer.close()
