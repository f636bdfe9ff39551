"""The connection to a client: requests arrive on it, and are answered in their order."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import JSON, Answer, Exchange
from engine_server.router.http.transport import configure_transport
from engine_server.router.http.wire import Fields, Request, absolute_path, own_response_head

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# The rest of a refused request is read and discarded for this long, so that the client gets to read the refusal.
LINGER_SECONDS = 2.0
FRAMING_FIELDS = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest accepted head and body of a request, in bytes."""

    head: int = 64 * 1024
    body: int = 32 * 1024 * 1024


class ClientConnection(asyncio.Protocol):
    """Parses requests as bytes arrive, and answers one at a time; each answer has an exchange of its own."""

    write: Callable[[bytes], None]

    def __init__(self, answer: Callable[[Exchange], Answer], limits: Limits) -> None:
        self._answer = answer
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        # The request that is being received.
        self._fields = Fields()
        self.on_header = self._fields.add
        self._parser = HttpRequestParser(self)
        self._body = bytearray()
        self._received_http11 = False
        self._receiving = self._in_head = False
        # A request was refused: all further bytes are discarded.
        self._discarding = False
        # Requests that were received and not yet answered.
        self._received: deque[Request | RequestError] = deque()
        self._exchange: Exchange | None = None
        # The client is slow to read.
        self._blocked = False
        # Time (of the event loop) at which the client last sent a part of a request or got an answer.
        self._last_active = self._loop.time()
        # Done once the connection is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.closing = False

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        configure_transport(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._in_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(errors.malformed(f"This is not HTTP: {error}"))
        if self._in_head and self._head_size > self._limits.head:
            self._refuse(errors.head_too_large(self._limits.head))
        if self._receiving:
            self._last_active = self._loop.time()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        self._received.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.stop()

    def pause_writing(self) -> None:
        self._blocked = True
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.resume_reading()
        self._advance()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_size = 0
        self._target = b""
        self._fields.clear()
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_headers_complete(self) -> None:
        self._in_head = False
        lines, read = self._fields.take_forwarded(), self._fields.read
        self._lines = lines if b"host" in read else lines + b"Host: fairlead\r\n"
        if len(lines) > self._limits.head:
            self._refuse(errors.head_too_large(self._limits.head))
        elif int(read.get(b"content-length", 0)) > self._limits.body:
            self._refuse(errors.body_too_large(self._limits.body))
        elif b"expect" in read and read[b"expect"].lower() == b"100-continue" and not self._busy:
            self.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limits.body:
            self._refuse(errors.body_too_large(self._limits.body))

    def on_message_complete(self) -> None:
        parser = self._parser
        if self._discarding or parser.should_upgrade():
            return
        last = not parser.should_keep_alive()
        if last or not self._received_http11:  # asking for the version is slow, and clients keep to one
            self._received_http11 = parser.get_http_version() == "1.1"
            last = last or not self._received_http11
        target = self._target if self._target.startswith(b"/") else absolute_path(self._target)
        request = Request(parser.get_method(), target, self._lines, self._body, self._received_http11, last)
        self._received.append(request)
        self._receiving = False

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read a request again without its offer of another protocol.

        Some clients offer HTTP/2 with their first request, and the parser then stops before its body.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(errors.malformed("CONNECT is for proxies"))
            return
        read = self._fields.read
        framing = [b"%b: %b\r\n" % (name, read[name]) for name in FRAMING_FIELDS if name in read]
        head = (b"%b %b HTTP/1.1\r\n" % (method, self._target), self._lines, *framing, b"\r\n")
        self._parser = HttpRequestParser(self)
        self.data_received(b"".join(head) + rest)

    def _refuse(self, failure: RequestError) -> None:
        """Answer `failure` after the requests before, and discard the rest: it cannot be told apart from a body."""
        if not self._discarding:
            self._discarding = True
            self._body = bytearray()
            self._received.append(failure)
            self._receiving = False

    # Answers

    def _advance(self) -> None:
        """Begin the next answer if the one before has ended."""
        if not self._received:
            self._transport.resume_reading()
        elif self._exchange is not None or self._blocked:
            self._transport.pause_reading()  # the client sends faster than it is answered
        else:
            request = self._received.popleft()
            if isinstance(request, RequestError):
                self._respond_refusal(request)
                return
            if request.last:
                self.closing = True
            self._exchange = exchange = Exchange(self, request)
            exchange.begin(self._answer(exchange))

    def finish(self) -> None:
        """Go on with the next request: the exchange has ended."""
        self._exchange = None
        self._last_active = self._loop.time()
        if self.closing:
            self._received.clear()
            self._transport.close()
        elif self._received:
            self._loop.call_soon(self._advance)
        else:
            self._transport.resume_reading()

    def _respond_refusal(self, failure: RequestError) -> None:
        self.closing = True
        body = failure.body()
        self.write(own_response_head(failure.status, len(body), JSON, failure.lines, close=True) + body)
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_SECONDS, self._transport.close)

    # Ends

    def close(self) -> None:
        """Close the connection after what was written."""
        self._transport.close()

    def close_when_idle(self) -> None:
        """Accept no further requests, and close once those that have arrived are answered."""
        self.closing = True
        if not (self._busy or self._receiving or self._discarding):
            self._transport.close()

    def abort(self) -> None:
        """Reset the connection, whatever is in flight."""
        self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._exchange is not None or bool(self._received)

    @property
    def idle_since(self) -> float:
        """Time since which the client has neither sent nor read anything, although it is its turn."""
        return self._loop.time() if self._busy or self._blocked else self._last_active
