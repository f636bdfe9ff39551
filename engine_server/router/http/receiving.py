"""The requests that arrive on a connection, parsed under limits."""

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.forwarded_fields import REQUEST_FIELDS, ForwardedFields
from engine_server.router.http.limits import Limits
from engine_server.router.http.request_id import request_id
from engine_server.router.http.wire import PARTS_PER_KEPT, Fields, Request, absolute_path
from engine_server.shared.body_buffer import Body, BodyBuffer
from engine_server.shared.pipelining import MAX_WAITING, Unparsed
from engine_server.shared.places import Stage

# Fields that a head without an offer of another protocol does not have, and one that has been acted upon.
OFFER_FIELDS = (b"connection", b"upgrade", b"http2-settings", b"expect")
# Bytes of chunk headers that each byte of a body may come with: `1\r\nx\r\n` is the smallest chunk.
FRAMING_PER_BYTE = 16
# The sender of a body that is larger, or of unknown length, is checked before the body is received.
UNCHECKED_BODY_BYTES = 16 * 1024
# Memory of the heads of requests that wait behind another one, as many as are parsed ahead.
WAITING_HEADS_BYTES = 64 * 1024


class Refusal(NamedTuple):
    """A request that was not received whole, as far as it was, and the error that answers it."""

    request: Request
    error: RequestError


class RequestReader:
    """Parses requests as bytes arrive. The first invalid one is refused, and ends the connection's requests.

    The times at which parts of a request arrived are those of the event loop.
    """

    def __init__(
        self,
        limits: Limits,
        on_expectation: Callable[[], None],
        check_sender: Callable[[Mapping[bytes, bytes]], None],
        forwarded: ForwardedFields = REQUEST_FIELDS,
    ) -> None:
        """Call `on_expectation` after the head of a request whose client waits for permission to send the body.

        check_sender: raises RequestError if the header fields are of a sender whose body is to be refused unread.
        """
        self._limits = limits
        self._check_sender = check_sender
        self._on_expectation = on_expectation
        # Requests that were received and not yet taken.
        self.received: deque[Request | Refusal] = deque()
        # A request has begun, and has not ended.
        self.receiving = False
        # A request was refused: its rest can't be told apart from further requests.
        self.refused = False
        # Bytes of the bodies that arrived, until the connection counts a request as ended; of heads that are incomplete
        # or wait behind another request; and of what is not parsed.
        self.held = 0
        self._unparsed = Unparsed()
        # The heads that wait count in `held`.
        self._heads_wait = False
        # The request that is being received.
        self._forwarded = forwarded
        self._fields = Fields(forwarded)
        # Bytes of its head in further pieces than the first, until it is complete, and its declared length.
        self._head_size = self._length = 0
        # Pieces of the target, and then of the body, that arrived last.
        self._pieces: list[bytes] = []
        self.on_url = self.on_body = self._pieces.append
        self.on_header = self._fields.add
        self._parser = HttpRequestParser(self)
        self._in_head = False
        self._target = b""
        self._lines = b""
        # The header fields of the request that arrived last, or arrives.
        self.fields: dict[bytes, bytes] = {}
        # The body so far; None if nothing of it has arrived.
        self._body: BodyBuffer | None = None
        # It began with the bytes that arrived last.
        self._new = False
        self._http11 = False
        # Bytes of trailers, chunk headers and chunk extensions, less an allowance in proportion to the body.
        self._framing = 0
        # Time (perf_counter) of the first byte of the request.
        self._arrived = 0.0
        # The time at which the request began, None until its first piece is noted, and that of its last piece.
        self._began: float | None = None
        self._last_piece = 0.0

    def feed_slices(self, data: bytes) -> None:
        """Parse what is not parsed yet, and then `data`, for as long as few requests wait to be taken."""
        self._unparsed.add(data)
        self.held += len(data)
        while self._unparsed and len(self.received) < MAX_WAITING:
            body = 0 if self._in_head or not self.receiving else self._length - len(self._body or b"")
            piece = self._unparsed.take(body)
            self.held -= len(piece)
            (self.feed_more if self.receiving else self.feed)(piece)

    def take(self) -> Request | Refusal:
        """Remove the next request from those that were received, and parse what waited for that."""
        received = self.received.popleft()
        if self._unparsed.rest:
            self.feed_slices(b"")
        if self._heads_wait and not self.received:
            self._release_heads()
        return received

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes that begin with a new request."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._feed_without_offers(data, upgrade)
        except HttpParserError as error:
            self.refuse(errors.malformed(f"This is not HTTP: {error}"))
        if self._pieces:
            self._keep_pieces()

    def feed_more(self, data: bytes | memoryview) -> None:
        """Parse further bytes of the request that is being received, and what follows it."""
        in_head, arrived = self._in_head, len(self._body or b"")
        self._new = False
        self.feed(data)
        if not self.receiving or self._new:
            return
        if self._in_head:
            self._head_size += len(data)
            self.held += len(data)
            if self._head_size > self._limits.head:
                self.refuse(errors.head_too_large(self._limits.head))
        elif not in_head:
            grown = len(self._body or b"") - arrived
            framing = self._framing + len(data) - (1 + FRAMING_PER_BYTE) * grown
            self._framing = max(0, framing)
            if framing > self._limits.framing:
                self.refuse(errors.too_much_framing(self._limits.framing))

    def refuse(self, error: RequestError) -> None:
        """Answer `error` after the requests before, and discard the body so far."""
        if self.refused:
            return
        self.refused = True
        self.held -= len(self._unparsed) + self._head_size
        self._unparsed.clear()
        self._head_size = 0
        method, target, read = b"", b"", self._fields.read
        if self.receiving:
            if self._in_head:
                target = b"".join(self._pieces)
            else:
                method, target, read = self._parser.get_method(), self._target, self.fields
            self.receiving = False
            self.held -= len(self._body or b"")
            self._body = None
        request = Request(method, target, b"", read, b"", self._http11, last=True, id=request_id(read))
        self.received.append(Refusal(request, error))

    def drop_received(self) -> None:
        """Forget the requests that were received and not yet taken, and what is not parsed."""
        self.held -= len(self._unparsed)
        self._unparsed.clear()
        self.held -= sum(len(item.body) for item in self.received if isinstance(item, Request))
        self.received.clear()
        if self._heads_wait:
            self._release_heads()

    def refuse_all(self, error: RequestError) -> None:
        """Answer `error` in place of all requests that were received and not yet taken."""
        self.drop_received()
        self.refused = False
        self.refuse(error)

    @property
    def stage(self) -> Stage:
        """The part of a request that is missing."""
        return (Stage.HEAD if self._in_head else Stage.BODY) if self.receiving else Stage.IDLE

    # Times

    def note_piece(self, now: float) -> None:
        """Note that a piece of an unfinished request arrived."""
        self._last_piece = now
        if self._began is None:
            self._began = now

    def extend(self, now: float, paused: float) -> None:
        """Extend all times: nothing was read for `paused` seconds."""
        self._last_piece = now
        self._began = now if self._began is None else min(now, self._began + paused)

    def check_times(self, now: float) -> None:
        """Refuse a request that arrives too slowly."""
        began, limits = self._began, self._limits
        if not self.receiving or began is None:
            return
        if self._in_head:
            if now - began > limits.head_seconds:
                self.refuse(errors.slow_request("The request's head", limits.head_seconds))
        elif now - began > limits.body_seconds:
            self.refuse(errors.slow_request("The request's body", limits.body_seconds))
        elif now - self._last_piece > limits.piece_seconds:
            self.refuse(errors.slow_request("The next piece of the request's body", limits.piece_seconds))

    # Called by the parser

    def on_message_begin(self) -> None:
        self.receiving = self._in_head = self._new = True
        self._framing = 0
        self._arrived = perf_counter()
        self._began = self._body = None
        self._fields.clear()

    def on_headers_complete(self) -> None:
        limits, fields = self._limits, self._fields
        lines, read = fields.take_forwarded(), fields.read
        fields.read = {}  # takes the trailers
        self._target = b"".join(self._pieces)
        self._pieces.clear()
        self._in_head = False
        self.held -= self._head_size
        self._head_size = 0
        self._length = size = int(read.get(b"content-length", 0))
        self.fields = read
        self._lines = lines if b"host" in read else lines + b"Host: localhost\r\n"
        kept, fields.kept = fields.kept, []
        if len(lines) + sum(map(len, kept)) > limits.head:
            self.refuse(errors.head_too_large(limits.head))
        elif len(self._target) > limits.target:
            self.refuse(errors.target_too_long(limits.target))
        elif lines.count(b"\n") + len(kept) // PARTS_PER_KEPT > limits.fields:
            self.refuse(errors.too_many_fields(limits.fields))
        elif size > limits.body:
            self.refuse(errors.body_too_large(limits.body))
        elif not limits.body and b"transfer-encoding" in read:
            self.refuse(errors.body_too_large(0))
        elif fields.repeated and b"," in read.get(b"host", b""):
            self.refuse(errors.malformed("There is more than one Host"))
        elif (size > UNCHECKED_BODY_BYTES or b"transfer-encoding" in read) and not self._is_sender_known():
            return
        elif b"expect" in read and read[b"expect"].lower() == b"100-continue":
            self._on_expectation()

    def _is_sender_known(self) -> bool:
        try:
            self._check_sender(self.fields)
        except RequestError as error:
            self.refuse(error)
            return False
        return True

    def on_message_complete(self) -> None:
        parser = self._parser
        if self.refused or parser.should_upgrade():
            return
        piece = self._take_pieces()
        if piece is None:
            return
        body: Body = piece
        if self._body is not None:
            self._body.add(piece)
            body = self._body.whole()
        last = not parser.should_keep_alive()
        if last or not self._http11:  # asking for the version is slow, and clients keep to one
            self._http11 = parser.get_http_version() == "1.1"
            last = last or not self._http11
        target, read = self._target, self.fields
        if not target.startswith(b"/"):
            target = absolute_path(target)
        method, id_ = parser.get_method(), request_id(read)
        if self.received and not self._heads_wait:
            self._heads_wait = True
            self.held += WAITING_HEADS_BYTES
        self.received.append(
            Request(method, target, self._lines, read, body, self._http11, last, id_, arrived=self._arrived)
        )
        self.receiving = False
        self._body = None  # it lives as long as its request

    def _release_heads(self) -> None:
        self._heads_wait = False
        self.held -= WAITING_HEADS_BYTES

    def _keep_pieces(self) -> None:
        """Keep what arrived of an unfinished request, and nothing of one that was refused."""
        if self.refused:
            self._pieces.clear()
        elif not self._in_head and (piece := self._take_pieces()) is not None:
            if self._body is None:
                self._body = BodyBuffer(self._limits.body)
            self._body.add(piece)

    def _take_pieces(self) -> bytes | None:
        """Return what arrived last of the body; None for a body that is too large, which is refused."""
        piece = b"".join(self._pieces)
        self._pieces.clear()
        if len(self._body or b"") + len(piece) > self._limits.body:
            self.refuse(errors.body_too_large(self._limits.body))
            return None
        self.held += len(piece)
        return piece

    def _feed_without_offers(self, data: bytes | memoryview, upgrade: HttpParserUpgrade) -> None:
        """Read requests again without their offers of another protocol.

        Some clients offer HTTP/2 with their first request, and the parser then stops before its body.
        """
        rest = memoryview(data)
        while not self.refused:
            if self._parser.get_method() == b"CONNECT":
                self.refuse(errors.malformed("CONNECT is for proxies"))
                return
            rest = rest[upgrade.args[0] :]
            head = self._head_without_offer()
            self._parser = HttpRequestParser(self)
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(rest)
                return
            except HttpParserUpgrade as next_upgrade:
                upgrade = next_upgrade
            except HttpParserError as error:
                self.refuse(errors.malformed(f"This is not HTTP: {error}"))

    def _head_without_offer(self) -> bytes:
        parser, read = self._parser, self.fields
        first = b"%b %b HTTP/%b\r\n" % (
            parser.get_method(),
            self._target,
            parser.get_http_version().encode(),
        )
        kept = [
            b"%b: %b\r\n" % (name, value)
            for name, value in read.items()
            if name not in OFFER_FIELDS and not self._forwarded.include(name)
        ]
        close = b"" if parser.should_keep_alive() else b"Connection: close\r\n"
        return b"".join((first, self._lines, *kept, close, b"\r\n"))
