"""A proxy in front of the API server that answers wrongly, late or not at all."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from llm_operator.control.tracing import verb

# Answers a request in place of the API server; None passes it on.
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
# Headers of one connection, which the next one sets itself.
REFRAMED = {"content-length", "transfer-encoding", "connection"}


def status(code: int, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "a fault"}
    return web.json_response(body, status=code, headers=headers)


async def expired_watch(request: web.Request) -> web.StreamResponse:
    """Answer a watch with the error that a resource version is too old."""
    response = web.StreamResponse()
    await response.prepare(request)
    error = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
    await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
    return response


def is_watch(request: web.Request) -> bool:
    return "watch" in request.query


@dataclass(slots=True)
class Call:
    """One request of the client. Times are the monotonic clock's, in seconds."""

    # As in RBAC rules.
    verb: str
    path: str
    arrived_at: float
    answered_at: float | None = None
    # None without an answer, or before it.
    status: int | None = None
    # A fault has taken the place of the API server.
    is_faulted: bool = False


class FaultProxy:
    """Forwards to an API server from a thread of its own, and records the calls in the order of their arrival."""

    def __init__(self, api_server: Any) -> None:
        self.api_server = api_server
        self.fault: Fault | None = None
        self.calls: list[Call] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._streams: set[asyncio.Transport] = set()

    @contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        runner = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        try:
            yield self
        finally:
            self.flow()
            self.cut()
            asyncio.run_coroutine_threadsafe(self._stop(runner), self._loop).result(20)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    def kubeconfig(self, original: Path, token_file: Path) -> Path:
        """Return a copy of a kubeconfig that goes through the proxy, with its token in a file."""
        config = yaml.safe_load(original.read_text())
        token_file.write_text(config["users"][0]["user"]["token"])
        config["users"][0]["user"] = {"tokenFile": str(token_file)}
        config["clusters"][0]["cluster"] = {"server": self.url}
        file = original.with_name(f"{original.name}-through-proxy")
        file.write_text(yaml.safe_dump(config))
        return file

    @property
    def faulted(self) -> int:
        """The number of calls that a fault has answered."""
        return sum(call.is_faulted for call in self.calls)

    def stall(self) -> None:
        """Pass nothing on in either direction; connections stay open."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def cut(self) -> None:
        """Cut all open watches."""

        def cut() -> None:
            for transport in list(self._streams):
                transport.abort()

        self._loop.call_soon_threadsafe(cut)

    async def _start(self) -> web.AppRunner:
        trust = aiohttp.TCPConnector(ssl=False, limit=0)
        self._session = aiohttp.ClientSession(connector=trust, auto_decompress=False)
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _stop(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await self._session.close()

    async def carry_out_unanswered(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and cut the connection instead of answering it."""
        async with self._call_api_server(request) as upstream:
            await upstream.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(verb(request.method, request.url), request.path, time.monotonic())
        self.calls.append(call)
        await self._flowing.wait()
        if self.fault is not None and (answer := await self.fault(request)) is not None:
            call.is_faulted, call.status, call.answered_at = True, answer.status, time.monotonic()
            return answer
        async with self._call_api_server(request) as upstream:
            kept = {key: value for key, value in upstream.headers.items() if key.lower() not in REFRAMED}
            await self._flowing.wait()
            call.status, call.answered_at = upstream.status, time.monotonic()
            response = web.StreamResponse(status=upstream.status, headers=kept)
            await response.prepare(request)
            transport = request.transport
            assert isinstance(transport, asyncio.Transport)
            self._streams.add(transport)
            try:
                with suppress(aiohttp.ClientConnectionError, ConnectionResetError):
                    async for chunk in upstream.content.iter_any():
                        await self._flowing.wait()
                        await response.write(chunk)
            finally:
                self._streams.discard(transport)
            return response

    @asynccontextmanager
    async def _call_api_server(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        dropped = REFRAMED | {"host"}
        headers = {key: value for key, value in request.headers.items() if key.lower() not in dropped}
        url = f"{self.api_server.url}{request.path_qs}"
        body = await request.read() or None
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, headers=headers, data=body, timeout=timeout
        ) as upstream:
            yield upstream
