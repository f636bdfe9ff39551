"""A client's connection: requests come in, each is answered in its turn."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from . import errors
from .errors import RequestError
from .wire import REASONS, Fields, Framing, Request, origin_form, response_head

log = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LINGER = 2.0  # how long a refused body is read and thrown away, so that the client reads why
FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Limits:
    head: int = 64 * 1024
    body: int = 32 * 1024 * 1024


class Downstream(asyncio.Protocol):
    """Parses in callbacks; answers in one task, which is cancelled when the connection is gone."""

    def __init__(self, answer: "Answer", limits: Limits) -> None:
        self._answer = answer
        self._limits = limits
        self.loop = asyncio.get_running_loop()
        self._parser = HttpRequestParser(self)
        self._arrived: deque[Request | RequestError] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._source: asyncio.Transport | None = None
        self._deaf = False  # whatever else comes is thrown away
        self._receiving = False  # a part of a request is here
        self._serving = False
        self._heard = self.loop.time()
        self._begin_message()
        self._with_body = True
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self.http11 = True
        self.closing = False

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_watch(self._transport)
        self._task = self.loop.create_task(self._converse())

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._heard = self.loop.time()
        if self._receiving and not self._head_complete:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(errors.malformed(f"This is not HTTP: {error}"))
        if not self._head_complete and self._head_size > self._limits.head:
            self._refuse(errors.head_too_large(self._limits.head))
        if self._arrived and self._serving:
            self._transport.pause_reading()  # it sends faster than it is answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._task.cancel()
        self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()
        if self._source is not None:
            self._source.pause_reading()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        if self._source is not None:
            self._source.resume_reading()

    # The parser

    def on_message_begin(self) -> None:
        self._begin_message()
        self._receiving = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:  # what comes later are trailers
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        self._head_complete = True
        if self._fields.size > self._limits.head:
            self._refuse(errors.head_too_large(self._limits.head))
        elif int(self._fields.get(b"content-length") or 0) > self._limits.body:
            self._refuse(errors.body_too_large(self._limits.body))
        elif self._fields.get(b"expect").lower() == b"100-continue" and not self._busy:
            self.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > self._limits.body:
            self._refuse(errors.body_too_large(self._limits.body))
        elif not self._deaf:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._deaf or self._parser.should_upgrade():
            return
        parser = self._parser
        http11, keep_alive = parser.get_http_version() == "1.1", parser.should_keep_alive()
        target, body = origin_form(self._target), b"".join(self._body)
        self._arrive(Request(parser.get_method(), target, self._fields, body, http11, keep_alive))

    def _begin_message(self) -> None:
        self._target = b""
        self._fields = Fields()
        self._body: list[bytes] = []
        self._body_size = 0
        self._head_size = 0
        self._head_complete = False

    def _decline_upgrade(self, rest: bytes) -> None:
        """Some clients offer HTTP/2 with their first request, and the parser then leaves its body: read
        it again without the offer."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(errors.malformed("CONNECT is for proxies"))
            return
        framing = [b"%b: %b\r\n" % (name, value) for name in FRAMING if (value := self._fields.get(name))]
        head = (b"%b %b HTTP/1.1\r\n" % (method, self._target), *self._fields.lines(), *framing, b"\r\n")
        self._parser = HttpRequestParser(self)
        self.data_received(b"".join(head) + rest)

    def _refuse(self, failure: RequestError) -> None:
        """This request is not read to its end, so nothing after it can be."""
        if not self._deaf:
            self._deaf = True
            self._body.clear()
            self._arrive(failure)

    def _arrive(self, request: Request | RequestError) -> None:
        self._receiving = False
        self._arrived.append(request)
        if self._arrival is not None:
            self._arrival.set_result(None)
            self._arrival = None

    # The conversation

    async def _converse(self) -> None:
        while True:
            request = await self._next()
            self._serving = True
            if isinstance(request, RequestError):
                await self._dismiss(request)
                return
            self.http11 = request.http11
            self.closing |= not (request.http11 and request.keep_alive)
            self._with_body = request.method != b"HEAD"
            try:
                await self._answer(request, self)
            except RequestError as failure:
                self.respond(failure.status, failure.body(), headers=failure.headers)
            except Exception:  # a fault of ours ends one connection, not the router
                log.exception("a request failed inside the router")
                self.cut()
            if self._writable is not None:
                await self._writable
            if self.closing:
                break
            self._serving = False
            self._heard = self.loop.time()
        self._transport.close()

    async def _next(self) -> Request | RequestError:
        if not self._arrived:
            self._transport.resume_reading()
            self._arrival = self.loop.create_future()
            await self._arrival
        return self._arrived.popleft()

    async def _dismiss(self, failure: RequestError) -> None:
        self.closing = self._with_body = True
        self.respond(failure.status, failure.body(), headers=failure.headers)
        self._transport.write_eof()
        await asyncio.sleep(LINGER)
        self._transport.close()

    # What others ask of it

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: Sequence[bytes] = (),
    ) -> None:
        """Answer with something of the router's own."""
        lines = [b"Content-Type: %b\r\n" % content_type, *headers]
        length = b"%d" % len(body)
        head = response_head(status, REASONS[status], lines, Framing.LENGTH, length, close=self.closing)
        self.write(head + body if self._with_body else head)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def hold(self, source: asyncio.Transport | None) -> None:
        """From now on, hold back this source while the client is slow to read."""
        if self._source is not None and self._writable is not None:
            self._source.resume_reading()
        self._source = source
        if source is not None and self._writable is not None:
            source.pause_reading()

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
        if not (self._busy or self._receiving):
            self._transport.close()

    def abandon(self) -> None:
        self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._serving or bool(self._arrived)

    @property
    def quiet_since(self) -> float:
        """When the client, whose turn it is to speak, spoke last."""
        return self.loop.time() if self._busy else self._heard


def keep_watch(transport: asyncio.Transport) -> None:
    """Let the kernel notice a peer whose machine is gone, however long an answer takes."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


Answer = Callable[[Request, Downstream], Awaitable[None]]
