"""Who leaves, and when: the router after a signal, and clients that have been quiet for too long."""

import asyncio
import contextlib
import os
import signal
import socket
import sys

import pytest

from engine_server.contract.api import Key
from engine_server.router import server, upstream
from engine_server.router.endpoints import Address, Deployment

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


async def start_process(*flags: str) -> tuple[asyncio.subprocess.Process, str]:
    command = [
        sys.executable,
        "-m",
        "engine_server.cli",
        "router",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        *flags,
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    async for line in process.stderr:
        if b"listening on " in line:
            return process, line.decode().split("listening on ")[1].strip()
    raise AssertionError("it did not start")


@pytest.fixture
async def process(start_engine, eventually):
    """A real router process in front of an engine whose answer can be held; (process, URL, engine, release)."""
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    child, url = await start_process("--endpoint", f"m={engine.url}", "--drain-timeout", "30")
    await eventually(lambda: engine.probes)
    yield child, url, engine, release
    if child.returncode is None:
        child.kill()
    await child.wait()


async def test_sigterm_finishes_what_is_under_way(process, eventually, session):
    child, url, engine, release = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGTERM)

    async def draining() -> bool:
        async with session.get(f"{url}/ready") as response:
            return response.status == 503 and (await response.json()) == {"status": "draining"}

    await eventually(draining)
    late = asyncio.create_task(send(session, url))
    await eventually(lambda: len(engine.received) == 2)  # for a while, new ones are still taken

    async def refused() -> bool:
        try:
            async with session.get(f"{url}/health"):
                return False
        except OSError:
            return True

    await eventually(refused)
    assert child.returncode is None
    release.set()
    assert await pending == await late == (200, "close")
    assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_a_second_signal_does_not_wait(process, eventually, session):
    child, url, engine, _ = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGINT)

    async def closed() -> bool:
        return b"draining" in await child.stderr.readline()

    await eventually(closed)
    os.kill(child.pid, signal.SIGINT)
    assert await asyncio.wait_for(child.wait(), 20) == 0
    assert isinstance((await asyncio.gather(pending, return_exceptions=True))[0], OSError | Exception)


async def send(session, url) -> tuple[int, str | None]:
    async with session.post(f"{url}/v1/completions", json={"model": "m"}) as response:
        await response.read()
        return response.status, response.headers.get("Connection")


async def send_until_it_arrives(session, url, engine, eventually) -> asyncio.Task:
    async def let_in() -> bool:
        async with session.get(f"{url}/metrics") as response:
            return (
                'endpoint_live{deployment="m"' in (text := await response.text())
                and "} 1.0" in text.split("endpoint_live{")[1]
            )

    await eventually(let_in)
    task = asyncio.create_task(send(session, url))
    await eventually(lambda: engine.received)
    return task


async def test_quiet_connections_are_closed_and_busy_ones_are_not(start_engine, start_router, monkeypatch):
    monkeypatch.setattr(server, "SWEEP", 0.02)
    monkeypatch.setattr(server, "QUIET_LIMIT", 0.1)
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    router = await start_router({"m": [await start_engine(behave)]})
    busy, busy_writer = await router.connect()
    busy_writer.write(POST)
    for said in (b"", b"POST /v1/completions HTTP/1.1\r\nContent-Le"):
        reader, writer = await router.connect()
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    release.set()
    assert (await busy.readline()).startswith(b"HTTP/1.1 200")
    busy_writer.close()


class Told:
    """One endpoint, trusted without a probe."""

    synced = True

    def __init__(self, *address):
        self.deployment = Deployment(Key("default", "m"), ("m",), (Address(*address),), vouched=True)

    async def run(self, directory):
        directory.put(self.deployment)


async def test_a_client_that_leaves_while_its_engine_is_being_reached(start_router, eventually, monkeypatch):
    """The engine's queue is full, so that a connect gets no answer at all."""
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT", 60.0)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        router = await start_router(sources=[Told(*full.getsockname())])
        _, writer = await router.connect()
        writer.write(POST)
        in_flight = r"fairlead_router_endpoint_in_flight\{.*\}"

        async def under_way() -> bool:
            return await router.metric(in_flight) == 1

        await eventually(under_way)
        writer.close()

        async def counted() -> bool:
            return await router.metric(r'fairlead_router_requests_total\{code="499",model="m"\}') == 1

        await eventually(counted)
        assert await router.metric(in_flight) == 0
