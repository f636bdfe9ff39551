"""Connections to engines: kept alive, one answer at a time on each."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from .downstream import keep_watch
from .endpoints import Address
from .relay import Outcome, Relay

CONNECT_TIMEOUT = 1.0  # a pod that is gone answers nothing at all, for a while
UNACKNOWLEDGED_MS = 30_000


class Connection(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._relay: Relay | None = None

    async def exchange(
        self, message: bytes, relay: Relay, hold: Callable[[asyncio.Transport | None], None]
    ) -> Outcome:
        """Send a request and let `relay` have the answer. Whatever ends this early closes the connection,
        which is how an engine learns that nobody waits any more."""
        self._relay = relay
        hold(self.transport)
        try:
            self.transport.write(message)
            return await relay.outcome
        finally:
            self._relay = None
            relay.close()
            hold(None)
            if relay.reusable:
                self._pool.put_by(self)
            else:
                self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_watch(self.transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)

    def data_received(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.feed(data)
        else:
            self.transport.abort()  # nobody asked

    def connection_lost(self, exc: Exception | None) -> None:
        if self._relay is not None:
            self._relay.lost(exc)
        else:
            self._pool.strike(self)


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

    async def connect(self) -> Connection:
        """A new connection, or OSError."""
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), *self._address
            )
        return connection

    def put_by(self, connection: Connection) -> None:
        if self._open and not connection.transport.is_closing():
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
