"""Connections to engines, kept alive between requests; each carries one answer at a time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from httptools import HttpParserError, HttpResponseParser

from engine_server.router.http.exchange import Exchange, wait_for
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS, ForwardedFields
from engine_server.router.http.limits import Limits
from engine_server.router.http.transport import IMPATIENT, PATIENT, configure_transport, detect_loss
from engine_server.router.http.wire import Fields, Message, chunk
from engine_server.router.routing.endpoint import Endpoint, EngineAddress

# Connects to a pod that is gone are not refused for a while but get no answer at all.
CONNECT_TIMEOUT_SECONDS = 1.0
# The timeout is counted in so many parts. A router that gets no CPU for a while (a quota, a virtual machine that is
# moved) finds one of them over when it goes on, and still reads what arrived meanwhile.
TIMEOUT_PARTS = 4
# Answers have the limits of requests: an engine may be any server.
LIMITS = Limits()


class Receiver(Protocol):
    """Takes one answer of an engine."""

    def on_head(self, status: int, reason: bytes, fields: Fields) -> None:
        """Take the head. `fields` belong to the connection: they are valid during the call."""
        ...

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body. Raises ValueError if the engine can't have meant it."""
        ...

    def on_end(self) -> None:
        """Take note of the end of the answer."""
        ...

    def on_excess(self) -> None:
        """Take note that the head or the trailers are larger than the limits."""
        ...

    def on_failure(self) -> None:
        """Take note that the bytes are not HTTP, or that the connection failed. It may follow the answer's end."""
        ...

    def on_close(self) -> None:
        """Take note that the engine closed the connection. It may follow the answer's end."""
        ...

    def flush(self) -> None:
        """Act on what was taken: no more has arrived yet."""
        ...

    def steady_state(self, data: bytes) -> asyncio.Protocol | None:
        """Return the protocol that takes what follows `data`, one whole chunk that was taken; None: no other does."""
        ...


class EngineConnection(asyncio.Protocol):
    """Parses answers as bytes arrive. Each is given to a receiver of its own, which gets nothing after its release.

    Between two chunks of a body its receiver may have another protocol read the transport (`steady_state`), which gives
    it back between two chunks, with the first read that it does not forward: the parser misses whole chunks alone.
    """

    send: Callable[[Message], None]

    def __init__(self, pool: "Pool", forwarded: ForwardedFields) -> None:
        self._pool = pool
        self._fields = Fields(forwarded)
        self.on_header = self._fields.add
        # Pieces of the body that arrived last.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        # Pieces of the reason of a head that has not arrived whole.
        self._reason: list[bytes] = []
        self.on_status = self._reason.append
        self._parser = HttpResponseParser(self)
        # None between two answers.
        self._receiver: Receiver | None = None
        # The head of an answer has arrived that is not an interim one (1xx).
        self._begun = False
        # The answer has ended, and as it should.
        self._ended = False
        self._reusable = False
        # The loss of the engine's machine is noticed early.
        self._impatient = False
        # Bytes of the head that arrived, interim answers included; after the head those without a part of the body.
        self._head_size = 0

    def receive(self, receiver: Receiver) -> None:
        """Give the answer to the request that was sent to `receiver`, until `release`."""
        self._receiver = receiver
        self._begun = self._ended = self._reusable = False
        self._head_size = 0
        self._fields.clear()

    def release(self) -> None:
        """Keep the connection for another request, or close it, which tells the engine to stop an unfinished one."""
        self._receiver = None
        if self._reusable and not self._reason:  # which would be that of a further answer
            self.transport.resume_reading()
            if self._impatient:
                self._impatient = False
                detect_loss(self.transport, PATIENT)
            self._pool.put(self)
        else:
            self.transport.set_protocol(self)
            self.transport.abort()

    def take_back(self, data: bytes) -> None:
        """Read the transport again, from `data` on, which begins between two chunks."""
        self.transport.set_protocol(self)
        self.data_received(data)

    def detect_loss_early(self) -> None:
        """Notice within seconds if the engine's machine is lost, until the release: its answer has begun."""
        if not self._impatient:
            self._impatient = True
            detect_loss(self.transport, IMPATIENT)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send = self.transport.writelines
        configure_transport(self.transport)
        detect_loss(self.transport, PATIENT)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            self.transport.abort()  # it answers more than it was asked
            return
        self._head_size += len(data)
        is_one_piece = False
        try:
            try:
                self._parser.feed_data(data)
            finally:
                if self._pieces:
                    self._head_size = 0
                    for piece in self._pieces:
                        receiver.on_body(piece)
                    is_one_piece = len(self._pieces) == 1
                    self._pieces.clear()
                elif self._head_size > LIMITS.head and not self._ended:
                    receiver.on_excess()
                if self._ended:
                    receiver.on_end()
        except (HttpParserError, ValueError):
            self._reusable = False
            receiver.on_failure()
        receiver.flush()
        if is_one_piece and self._receiver is receiver:
            protocol = receiver.steady_state(data)
            if protocol is not None and data == chunk(piece):
                self.transport.set_protocol(protocol)

    def connection_lost(self, exc: Exception | None) -> None:
        receiver = self._receiver
        if receiver is None:
            self._pool.discard(self)
            return
        if exc is None:
            receiver.on_close()
        else:
            receiver.on_failure()
        receiver.flush()

    # Called by the parser

    def on_headers_complete(self) -> None:
        if self._begun:
            raise HttpParserError("more than one answer")
        status, reason = self._parser.get_status_code(), b"".join(self._reason)
        self._reason.clear()
        if status < 200:
            self._fields.clear()
            return
        self._begun = True
        assert self._receiver is not None
        fields, size, self._head_size = self._fields, self._head_size, 0
        # Each field has several parts.
        if (size > LIMITS.head or len(fields.parts) + len(fields.kept) > LIMITS.fields) and fields.exceed(
            LIMITS, len(reason)
        ):
            self._receiver.on_excess()
            raise HttpParserError("the head of an answer is too large")
        self._receiver.on_head(status, reason, fields)

    def on_message_complete(self) -> None:
        if self._begun:
            self._ended, self._reusable = True, self._parser.should_keep_alive()


class Pool:
    """Idle connections to one endpoint. The one used last is reused first, so that the engine can close the others."""

    def __init__(self, address: EngineAddress, forwarded: ForwardedFields = ANSWER_FIELDS) -> None:
        self._address = address
        self._forwarded = forwarded
        self._idle: list[EngineConnection] = []
        self._open = True

    def take(self) -> EngineConnection | None:
        """Return an idle connection, if there is one. The engine may close it at any moment."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self, exchange: Exchange) -> EngineConnection:
        """Return a new connection. Raises OSError if none is open within CONNECT_TIMEOUT_SECONDS."""
        opening = asyncio.get_running_loop().create_task(self._connect())
        try:
            await wait_for(opening, exchange)
        except GeneratorExit:  # the client has left
            opening.add_done_callback(self._put_opened)
            raise
        connection = opening.result()
        if connection.transport.is_closing():  # its loss was reported before there was a relay
            raise ConnectionResetError("the connection was closed at once")
        return connection

    def put(self, connection: EngineConnection) -> None:
        """Keep a connection for another request."""
        if self._open:
            self._idle.append(connection)
        else:
            connection.transport.close()

    def discard(self, connection: EngineConnection) -> None:
        """Remove an idle connection that was closed."""
        with suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close idle connections, and each of the others once its answer has ended."""
        self._open = False
        for connection in self._idle:
            connection.transport.close()

    async def _connect(self) -> EngineConnection:
        connecting = self._address.connect(self._new_connection)
        opening = asyncio.get_running_loop().create_task(connecting)
        try:
            for _ in range(TIMEOUT_PARTS):
                await asyncio.wait([opening], timeout=CONNECT_TIMEOUT_SECONDS / TIMEOUT_PARTS)
                if opening.done():
                    return opening.result()
        finally:
            opening.cancel()
        raise TimeoutError

    def _new_connection(self) -> EngineConnection:
        return EngineConnection(self, self._forwarded)

    def _put_opened(self, opening: asyncio.Task[EngineConnection]) -> None:
        if not (opening.cancelled() or opening.exception()):
            self.put(opening.result())


class Pools(dict[Endpoint, Pool]):
    """The pools of all endpoints that were sent requests."""

    def __init__(self, forwarded: ForwardedFields = ANSWER_FIELDS) -> None:
        """Forward these fields of answers."""
        super().__init__()
        self._forwarded = forwarded

    def __missing__(self, endpoint: Endpoint) -> Pool:
        pool = self[endpoint] = Pool(endpoint.address, self._forwarded)
        return pool

    def remove(self, endpoint: Endpoint) -> None:
        """Close the connections to an endpoint that is gone."""
        if pool := self.pop(endpoint, None):
            pool.close()
