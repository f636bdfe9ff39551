"""A client's connection: requests come in, each is answered in its turn."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from . import errors
from .errors import RequestError
from .wire import REASONS, Fields, Request, absolute_path, response_head

log = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LINGER = 2.0  # how long a refused body is read and thrown away, so that the client reads why
FRAMING = (b"content-length", b"transfer-encoding")
ENDED = object()
Answer = Generator[None, None, None]  # it yields where it waits


@dataclass(frozen=True, slots=True)
class Limits:
    head: int = 64 * 1024
    body: int = 32 * 1024 * 1024


class Downstream(asyncio.Protocol):
    """Parses in callbacks, and gives one answer at a time. An answer is a generator: it begins in the callback that
    brings its request's end, and what it waits for resumes it, so that a request never waits for a turn of the
    event loop, as a task would. When the client is gone, the answer is closed."""

    def __init__(self, answer: "Callable[[Request, Downstream], Answer]", limits: Limits) -> None:
        self._answer = answer
        self._limits = limits
        self.loop = asyncio.get_running_loop()
        self._fields = Fields()
        self.on_header = self._fields.add
        self._parser = HttpRequestParser(self)
        self._body = bytearray()
        self._arriving11 = False  # whether what comes now is HTTP/1.1
        self._receiving = self._in_head = False  # a part of a request is here
        self._deaf = False  # whatever else comes is thrown away
        self._arrived: deque[Request | RequestError] = deque()
        self._answering: Answer | None = None
        self._with_body = True
        self._blocked = False  # the client is slow to read
        self._heard = self.loop.time()
        self.source: asyncio.Transport | None = None  # held back while the client is slow to read
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self.http11 = True  # what is answered now
        self.closing = False

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        prepare(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
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
            self._heard = self.loop.time()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)
        self._arrived.clear()
        if self._answering is not None:
            self._answering.close()
            self._answering = None

    def pause_writing(self) -> None:
        self._blocked = True
        if self.source is not None:
            self.source.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        if self.source is not None:
            self.source.resume_reading()
        self._advance()

    # The parser

    def on_message_begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_size = 0
        self._target = b""
        self._fields.begin()
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_headers_complete(self) -> None:
        self._in_head = False
        lines, read = self._fields.onward(), self._fields.read
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
        if self._deaf or parser.should_upgrade():
            return
        last = not parser.should_keep_alive()
        if last or not self._arriving11:  # who began so and goes on keeps to it; to ask is slow
            self._arriving11 = parser.get_http_version() == "1.1"
            last = last or not self._arriving11
        target = self._target if self._target.startswith(b"/") else absolute_path(self._target)
        request = Request(parser.get_method(), target, self._lines, self._body, self._arriving11, last)
        self._arrived.append(request)
        self._receiving = False

    def _decline_upgrade(self, rest: bytes) -> None:
        """Some clients offer HTTP/2 with their first request, and the parser then leaves its body: read
        it again without the offer."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(errors.malformed("CONNECT is for proxies"))
            return
        read = self._fields.read
        framing = [b"%b: %b\r\n" % (name, read[name]) for name in FRAMING if name in read]
        head = (b"%b %b HTTP/1.1\r\n" % (method, self._target), self._lines, *framing, b"\r\n")
        self._parser = HttpRequestParser(self)
        self.data_received(b"".join(head) + rest)

    def _refuse(self, failure: RequestError) -> None:
        """This request is not read to its end, so nothing after it can be."""
        if not self._deaf:
            self._deaf = True
            self._body = bytearray()
            self._arrived.append(failure)
            self._receiving = False

    # The answers

    def _advance(self) -> None:
        """Begin the next answer, if it is time for one."""
        if not self._arrived:
            self._transport.resume_reading()
        elif self._answering is not None or self._blocked:
            self._transport.pause_reading()  # it sends faster than it is answered
        else:
            request = self._arrived.popleft()
            if isinstance(request, RequestError):
                self._dismiss(request)
                return
            self.http11 = request.http11
            self.closing |= request.last
            self._with_body = request.method != b"HEAD"
            self._answering = self._answer(request, self)
            self.resume()

    def resume(self, _: object = None) -> None:
        """Go on with the answer under way: what it waited for is here."""
        if self._answering is None:
            return  # the client has left meanwhile
        try:
            if next(self._answering, ENDED) is not ENDED:
                return  # it waits again
        except RequestError as failure:
            self._respond_error(failure)
        except Exception:  # a fault of ours ends one connection, not the router
            log.exception("a request failed inside the router")
            self.cut()
        self._answering = None
        self._heard = self.loop.time()
        if self.closing:
            self._arrived.clear()
            self._transport.close()
        elif self._arrived:
            self.loop.call_soon(self._advance)
        else:
            self._transport.resume_reading()

    def _dismiss(self, failure: RequestError) -> None:
        self.closing = self._with_body = True
        self._respond_error(failure)
        self._transport.write_eof()
        self._transport.resume_reading()
        self.loop.call_later(LINGER, self._transport.close)

    def _respond_error(self, failure: RequestError) -> None:
        self.respond(failure.status, failure.body(), headers=failure.headers)

    # What others ask of it

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: Sequence[bytes] = (),
    ) -> None:
        """Answer with something of the router's own."""
        own = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body))
        head = response_head(status, REASONS[status], b"".join((own, *headers)), close=self.closing)
        self.write(head + body if self._with_body else head)

    def cut(self) -> None:
        """Let the client see that its answer is not complete."""
        self.closing = True
        if self.http11:
            self._transport.close()
        else:
            self._transport.abort()

    def leave_when_idle(self) -> None:
        """No more requests but those that are here."""
        self.closing = True
        if not (self._busy or self._receiving or self._deaf):
            self._transport.close()

    def abandon(self) -> None:
        self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._answering is not None or bool(self._arrived)

    @property
    def quiet_since(self) -> float:
        """When the client, whose turn it is to speak, spoke last."""
        return self.loop.time() if self._busy or self._blocked else self._heard


def prepare(transport: asyncio.Transport) -> None:
    """Write at once, not at the loop's next turn, which is what uvloop does where it may buffer nothing. And let the
    kernel notice a peer whose machine is gone, however long an answer takes."""
    transport.set_write_buffer_limits(0)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
