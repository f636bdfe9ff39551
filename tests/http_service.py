"""A small application behind the protocol of the engine's server, asked through raw sockets."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
import uvloop
from waiting import until

from engine_server.server.http.protocol import Connection, ConnectionLimits
from engine_server.server.http.request_body import MAX_BYTES
from engine_server.server.serving import HttpServer
from engine_server.shared.places import Places
from engine_server.shared.shares import Shares

SECONDS = 30
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 64 << 20
PIECE = bytes(64 << 10)


class Application:
    """Answers with the request's method, path and body; other paths are described below."""

    def __init__(self) -> None:
        self.running = 0
        self.num_started = 0
        self.release = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        self.num_started += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.running -= 1

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/refuse":  # without reading the body
            await self._send(send, 413, b"too large", [(b"connection", b"close")])
            return
        if path == "/held":
            await asyncio.to_thread(self.release.wait)
        if path == "/large":
            await self._send(send, 200, bytes(LARGE))
            return
        if path == "/long":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(500):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        if path == "/stream":  # until the client disconnects
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        answer = {"method": scope["method"], "path": path, "body": body.decode("latin-1")}
        await self._send(send, 200, json.dumps(answer).encode())

    async def _send(self, send: Any, status: int, body: bytes, headers: Any = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class Service:
    """A server in a thread of its own, with uvloop as in production."""

    def __init__(
        self, limits: ConnectionLimits, keep_alive: float, input_shares: Shares, connections: int
    ) -> None:
        self.app = Application()
        places = Places(connections)
        protocol: Any = partial(Connection, limits=limits, input_shares=input_shares, places=places)
        self.server = HttpServer(
            uvicorn.Config(
                self.app, http=protocol, ws="none", lifespan="off", log_config=None,
                timeout_graceful_shutdown=1,
            ),
            places,
        )  # fmt: skip
        self.server.config.timeout_keep_alive = keep_alive  # type: ignore[assignment]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        uvloop.run(self.server.serve(sockets=[self.listener]))

    def start(self) -> None:
        self.thread.start()
        until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    def only_connection(self) -> Any:
        return until(lambda: next(iter(self.server.server_state.connections), None))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), timeout=SECONDS)


@contextlib.contextmanager
def serving(
    keep_alive: float = 60,
    input_shares: Shares | None = None,
    connections: int = 10_000,
    **limits: Any,
) -> Iterator[Service]:
    service = Service(ConnectionLimits(**limits), keep_alive, input_shares or Shares(MAX_BYTES), connections)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer that has a content length."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 16)
        assert piece, f"closed after {received!r}"
        received += piece
    head, body = received.split(b"\r\n\r\n", 1)
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        piece = connection.recv(1 << 16)
        assert piece, f"closed after {body!r}"
        body += piece
    return int(status.split()[1]), headers, body


def assert_refused(connection: socket.socket, status: int, code: str) -> dict[str, Any]:
    """Check for an error in OpenAI's shape, after which the connection is closed."""
    answered, headers, body = read_answer(connection)
    error: dict[str, Any] = json.loads(body)["error"]
    assert (answered, error["code"]) == (status, code), error
    assert headers["connection"] == "close"
    assert set(error) == {"message", "type", "param", "code"}
    assert connection.recv(1) == b""
    return error


def fields(count: int, size: int = 1) -> bytes:
    return b"".join(b"X-%d: %s\r\n" % (number, b"a" * size) for number in range(count))
