"""Connections to engines: kept alive, one answer at a time on each."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import suppress
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from .downstream import Downstream, prepare
from .endpoints import Address
from .relay import Relay
from .wire import Fields

CONNECT_TIMEOUT = 1.0  # a pod that is gone answers nothing at all, for a while
UNACKNOWLEDGED_MS = 30_000


class Connection(asyncio.Protocol):
    """Parses an engine's answers, and lets the relay of the request under way have them."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._fields = Fields()
        self.on_header = self._fields.add
        self._parser = HttpResponseParser(self)
        self._busy = False
        self._reusable = False

    def ask(self, message: bytes, relay: Relay, client: Downstream) -> None:
        """Send a request; `relay` gets the answer, and `client` is resumed when that has an outcome."""
        self._relay, self._busy, self._reusable = relay, True, False
        self._begin_head()
        client.source = self.transport
        self.transport.write(message)

    def release(self, client: Downstream) -> None:
        """Nobody waits any more. If an engine is not done by now, that its connection closes tells it to stop."""
        self._busy = False
        client.source = None
        if self._reusable:
            self.transport.resume_reading()
            self._pool.put_by(self)
        else:
            self.transport.abort()

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        prepare(self.transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.transport.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._reusable = False
            self._relay.break_off()
        self._relay.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._busy:
            self._pool.strike(self)
            return
        if self._relay.read_to_end and exc is None:
            self._relay.finish()
        else:
            self._relay.break_off()
        self._relay.flush()

    # The parser

    def _begin_head(self) -> None:
        self._reason = b""
        self._fields.begin()

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_headers_complete(self) -> None:
        if self._relay.outcome is not None:
            raise HttpParserError("more than one answer")
        status = self._parser.get_status_code()
        if status >= 200:
            self._relay.head(status, self._reason, self._fields)
        else:
            self._begin_head()

    def on_body(self, data: bytes) -> None:
        self._relay.body(data)

    def on_message_complete(self) -> None:
        self._relay.finish()
        self._reusable = self._relay.outcome == "finished" and self._parser.should_keep_alive()


class Pool:
    """Idle connections to one endpoint. The one used last goes first, so the engine can close the rest."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._open = True

    def take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def connect(self, client: Downstream) -> Generator[None, None, Connection]:
        """A new connection, or OSError."""
        opening = client.loop.create_task(self._connect())
        opening.add_done_callback(client.resume)
        try:
            yield
        except GeneratorExit:  # the client has left
            opening.add_done_callback(self._keep)
            raise
        return opening.result()

    async def _connect(self) -> Connection:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(self), *self._address)
        return connection

    def _keep(self, opening: asyncio.Task[Connection]) -> None:
        if not (opening.cancelled() or opening.exception()):
            self.put_by(opening.result())

    def put_by(self, connection: Connection) -> None:
        if self._open:
            self._idle.append(connection)
        else:
            connection.transport.close()

    def strike(self, connection: Connection) -> None:
        with suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """For good; connections with an answer under way finish it first."""
        self._open = False
        for connection in self._idle:
            connection.transport.close()


class Pools(dict[Address, Pool]):
    def __missing__(self, address: Address) -> Pool:
        pool = self[address] = Pool(address)
        return pool
