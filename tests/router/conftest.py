"""A router on loopback, and engines that are small real HTTP servers with configurable behavior."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import uvloop
from waiting import PATIENCE, until_async

from engine_server.router.callers.callers import Callers
from engine_server.router.http.limits import Limits
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.endpoint import parse_engine_address
from engine_server.router.server import Server, Settings
from engine_server.router.sources.flags import deployments_from_flags

# Tests of failures expect them immediately.
HOLD_NOTHING = HoldSettings(seconds=0.0)


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Received:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class Engine:
    """Calls `behave` to answer each request, one after the other on each connection."""

    behave: Callable[["Engine", Received, asyncio.StreamWriter], Awaitable[None]]
    ready: bool = True
    # Accepts connections and answers no probe, as a stopped process does.
    mute: bool = False
    port: int = 0
    host: str = "127.0.0.1"
    # Listened on in place of the port.
    socket: Path | None = None
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    probes: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task] = field(default_factory=set)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}" if self.socket is None else f"unix:{self.socket}"

    async def start(self) -> "Engine":
        if self.socket is not None:
            self.server = await asyncio.start_unix_server(self.serve, self.socket, limit=2**26)
            return self
        self.server = await asyncio.start_server(self.serve, self.host, self.port, limit=2**26)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Reset all connections, as kill -9 does."""
        if self.server is not None:
            self.server.close()
            self.server = None
        for task in self.tasks:
            task.cancel()
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        counted = False
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = [tuple(line.split(": ", 1)) for line in head[1:] if line]
                length = next((int(value) for key, value in headers if key.lower() == "content-length"), 0)
                request = Received(method, path, headers, await reader.readexactly(length))
                if path == "/ready":
                    self.probes += 1
                    if self.mute:
                        await reader.read()
                    status = "200 OK" if self.ready else "503 Service Unavailable"
                    writer.write(
                        f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                    )
                    return
                if not counted:
                    counted = True
                    self.connections += 1
                self.received.append(request)
                work = asyncio.create_task(self.behave(self, request, writer))
                self.tasks.add(work)
                gone = asyncio.create_task(reader.read(1))
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and gone.done():
                    gone.exception()  # of a reset; unless it is retrieved, asyncio reports it
                    self.hung_up.set()
                    work.cancel()
                    return
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                await work
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


async def answer(engine: Engine, request: Received, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"port": engine.port}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


@pytest.fixture
async def start_engine() -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    engines: list[Engine] = []

    async def start(
        behave=answer,
        *,
        ready: bool = True,
        socket: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> Engine:
        engine = await Engine(behave, ready, socket=socket, host=host, port=port).start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@dataclass
class Router:
    port: int
    metrics_port: int
    server: Server
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def chat(self, model: str = "m", **body):
        return self.session.post(f"{self.url}/v1/chat/completions", json={"model": model, **body})

    def get(self, path: str):
        return self.session.get(self.url + path)

    def internal(self, path: str):
        """Request a page of the internal port."""
        return self.session.get(f"http://127.0.0.1:{self.metrics_port}{path}")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=2**26)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes and return all that the router answers until it closes the connection."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await reader.read()
        finally:
            writer.close()

    async def metric(self, pattern: str) -> float:
        async with self.internal("/metrics") as response:
            text = await response.text()
        return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE))


@pytest.fixture
async def start_router(eventually) -> AsyncIterator[Callable[..., Awaitable[Router]]]:
    """Start a router over endpoints given as {model: [engine, ...]}, and wait until all ready engines are live."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            models=None,
            *,
            sources=(),
            policy="least_load",
            limits=None,
            drain_timeout=5.0,
            outputs=None,
            keys_file=None,
            engine_key_file=None,
            hold=HOLD_NOTHING,
            **settings,
        ) -> Router:
            models = models or {}
            flags = [
                ([m], parse_engine_address(engine.url)) for m, engines in models.items() for engine in engines
            ]
            server = Server(
                Settings(
                    host="127.0.0.1",
                    port=0,
                    metrics_port=0,
                    policy=policy,
                    limits=limits or Limits(),
                    drain_timeout=drain_timeout,
                    hold=hold,
                    **settings,
                ),
                deployments_from_flags(flags),
                sources,
                Callers(keys_file, engine_key_file),
                outputs,
            )
            ports: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(server.run(lambda *bound: ports.set_result(bound)))
            session = await stack.enter_async_context(
                aiohttp.ClientSession(headers={"Content-Type": "application/json"})
            )

            async def stop() -> None:
                await session.close()
                server.leave(0.0)
                server.leave(0.0)
                await asyncio.wait_for(task, PATIENCE)

            router = Router(*await ports, server, session)
            stack.push_async_callback(stop)
            expected = len({engine.url for engines in models.values() for engine in engines if engine.ready})
            live = r"fairlead_router_endpoint_live\{.*\}"

            async def all_live() -> bool:
                return len(models) == 0 or await router.metric(live) >= expected

            await eventually(all_live)
            return router

        yield start


@pytest.fixture
def eventually():
    """Return the function that waits for a condition, which may be a coroutine function."""
    return until_async


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
