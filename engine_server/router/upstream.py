"""Connections to engines: kept alive, one answer at a time on each."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import cast

from .downstream import Downstream, prepare
from .endpoints import Address, Endpoint
from .lifecycle import Lifecycle
from .relay import Relay

CONNECT_TIMEOUT = 1.0  # a pod that is gone answers nothing at all, for a while
UNACKNOWLEDGED_MS = 30_000


class Connection(asyncio.Protocol):
    """To one engine; what it says is its relay's."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._relay = Relay()
        self._busy = False

    def listen(self, client: Downstream, life: Lifecycle, another: Callable[[], Endpoint | None]) -> Relay:
        """What comes now is the answer; `client` is resumed when the relay has an outcome."""
        self._busy = True
        self._relay.begin(client, life, another)
        client.source = self.transport
        return self._relay

    def release(self, client: Downstream) -> None:
        """Nobody waits any more. If an engine is not done by now, that its connection closes tells it to stop."""
        self._busy = False
        client.source = None
        if self._relay.reusable:
            self.transport.resume_reading()
            self._pool.put_by(self)
        else:
            self.transport.abort()

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send = self.transport.write
        prepare(self.transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)

    def data_received(self, data: bytes) -> None:
        if self._busy:
            self._relay.feed(data)
        else:
            self.transport.abort()  # nobody asked

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._busy:
            self._pool.strike(self)
            return
        self._relay.close(orderly=exc is None)


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


class Pools(dict[Endpoint, Pool]):
    def __missing__(self, endpoint: Endpoint) -> Pool:
        pool = self[endpoint] = Pool(endpoint.address)
        return pool
