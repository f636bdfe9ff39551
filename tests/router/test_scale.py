"""Many connections: memory and counts return to what they were."""

import asyncio
import socket
import struct

import psutil
import pytest
from router_process import start_process
from waiting import NotYetError

from engine_server.router.http.limits import Limits
from engine_server.router.requests.watch import WatchTimes

POST = (
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    b'Host: localhost\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"b\r\ndata: one\n\n\r\n"
MEGABYTE = 1 << 20
STREAMS = [
    200,
    pytest.param(1_000, marks=pytest.mark.more),
    pytest.param(5_000, marks=pytest.mark.thorough),
]
STEADY_ROUNDS = 4
WAVE = 50
SILENT_CLIENTS = [100, pytest.param(1_000, marks=pytest.mark.thorough)]


class StreamingEngine(asyncio.Protocol):
    """Begins a stream of events in answer to each POST, and never ends it."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        ready = data.startswith(b"GET /ready")
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" if ready else HEAD + EVENT)


class StreamingClient(asyncio.Protocol):
    """Sends a request, and notes when the first event is there."""

    def __init__(self):
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(POST)

    def data_received(self, data):
        if b"data: one" in data and not self.begun.done():
            self.begun.set_result(None)


@pytest.fixture
async def router(session, eventually):
    """A router process in front of an engine that streams; (process, port, function that returns a metric's sum)."""
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(StreamingEngine, "127.0.0.1", 0, backlog=8192)
    port = engine.sockets[0].getsockname()[1]
    child, url, metrics = await start_process("--endpoint", f"m=http://127.0.0.1:{port}")

    async def metric(name: str) -> float:
        async with session.get(metrics) as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"fairlead_router_{name}"))

    async def live() -> bool:
        return await metric("endpoint_live{") == 1

    await eventually(live)
    yield psutil.Process(child.pid), int(url.rsplit(":", 1)[1]), metric
    child.kill()
    await child.wait()
    engine.close()


async def open_streams(port: int, count: int) -> list[StreamingClient]:
    loop = asyncio.get_running_loop()
    clients: list[StreamingClient] = []
    for _ in range(0, count, 100):
        opening = (loop.create_connection(StreamingClient, "127.0.0.1", port) for _ in range(100))
        clients += [client for _, client in await asyncio.gather(*opening)]
    await asyncio.gather(*(client.begun for client in clients))
    return clients


@pytest.mark.parametrize("streams", STREAMS)
async def test_open_streams_leave_no_memory_and_no_count(router, eventually, streams):
    process, port, metric = router

    async def ended() -> bool:
        return await metric("in_flight") == await metric("endpoint_in_flight{") == 0

    sizes: list[int] = []

    def grows() -> bool:
        # The allocator takes more in steps, the later the busier the machine; a leak grows in each round.
        return len(sizes) < STEADY_ROUNDS or sizes[-1] > sizes[-STEADY_ROUNDS] + MEGABYTE // 4

    while grows():
        assert len(sizes) < 25, sizes
        clients = await open_streams(port, streams)
        assert await metric("in_flight") == streams
        sizes.append(process.memory_info().rss)
        for client in clients:
            client.transport.abort()
        await eventually(ended)
    assert sizes[-1] < 250 * MEGABYTE


@pytest.mark.thorough
async def test_ten_thousand_connects_and_disconnects_leave_no_memory_and_no_count(router, eventually):
    process, port, metric = router
    sent = (b"", POST[:20], POST[:-5], POST)
    reset = struct.pack("ii", 1, 0)

    async def come_and_go(count: int) -> int:
        loop = asyncio.get_running_loop()
        for number in range(count):
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            if number % 3 == 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            if data := sent[number % len(sent)]:
                await loop.sock_sendall(client, data)
            client.close()

        async def gone() -> bool:
            # Connections to the engine may stay, for the next requests.
            clients = [one for one in process.net_connections() if one.laddr.port == port and one.raddr]
            return not clients and await metric("in_flight") == await metric("endpoint_in_flight{") == 0

        await eventually(gone)
        return process.memory_info().rss

    before = await come_and_go(10_000)
    assert await come_and_go(10_000) < 1.1 * before


@pytest.mark.parametrize("number", SILENT_CLIENTS)
async def test_clients_that_stop_reading_are_disconnected(start_engine, start_router, eventually, number):
    async def more_than_is_buffered(engine, request, writer):
        event = b"data: " + b"x" * (0x8000 - 8) + b"\n\n"
        writer.write(HEAD + (b"8000\r\n" + event + b"\r\n") * 12)
        await asyncio.Event().wait()

    engine = await start_engine(more_than_is_buffered)
    router = await start_router(
        {"m": [engine]},
        limits=Limits(unread_seconds=0.3, sweep_seconds=0.05),
        watch=WatchTimes(stall=3600.0),  # the engine has no more to send
    )
    loop = asyncio.get_running_loop()
    clients = []
    # One wave fits the backlog of the engine's socket: an engine that is too busy to accept refuses nobody.
    for wave in range(0, number, WAVE):
        for _ in range(WAVE):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # The kernel at the other end buffers little for small segments; for large ones it buffers megabytes.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", router.port))
            await loop.sock_sendall(client, POST)
            clients.append(client)
        await eventually(lambda begun=wave + WAVE: len(engine.received) == begun, f"{wave + WAVE} have begun")

    async def disconnected() -> bool:
        counts = [
            await router.metric(name)
            for name in ("fairlead_router_in_flight", r"fairlead_router_endpoint_in_flight\{.*\}")
        ]
        if counts != [0, 0]:
            raise NotYetError(f"{counts} in flight")
        return True

    await eventually(disconnected)
    async with router.get("/health") as response:
        assert response.status == 200
    for client in clients:
        client.close()
