"""One answer on its way from an engine to a client: parsed as it comes, passed on as it comes."""

from asyncio import Future
from collections.abc import Callable
from enum import Enum

from httptools import HttpParserError, HttpResponseParser

from .downstream import Downstream
from .errors import interrupted
from .lifecycle import Lifecycle
from .wire import LAST_CHUNK, Fields, Framing, chunk, response_head

EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class Outcome(Enum):
    FINISHED = "the client has the whole answer"
    UNREACHABLE = "no connection"
    UNANSWERED = "the connection ended before an answer began"
    REFUSED = "the engine answered 503, and the client has not seen it"
    CUT = "the answer broke off after the client had seen some of it"


class Relay:
    """Feeds on one engine's bytes; `outcome` says how it went. Nothing reaches the client before the answer's
    head is whole, so that until then the request can go elsewhere."""

    reusable = False  # the engine's connection, afterwards
    _status = 0
    _reason = b""
    _began = False
    _framing = Framing.NONE
    _read_to_end = False  # the engine marks the answer's end by closing
    _events = False
    _partial_event = b""

    def __init__(self, client: Downstream, life: Lifecycle, may_refuse: Callable[[], bool]) -> None:
        self.outcome: Future[Outcome] = client.loop.create_future()
        self._client = client
        self._life = life
        self._may_refuse = may_refuse
        self._parser = HttpResponseParser(self)
        self._fields = Fields()
        self._pending: list[bytes] = []

    # What the connection says

    def close(self) -> None:
        """Nothing more will come. Part relay and parser, which know each other: no work for the collector."""
        del self._parser

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self.reusable = False
            self._break_off()
        self._flush()

    def lost(self, error: Exception | None) -> None:
        """The engine's connection is gone."""
        if self._read_to_end and error is None:
            self._finish()
        else:
            self._break_off()
        self._flush()

    # What the parser says

    def on_message_begin(self) -> None:
        if self.outcome.done():
            raise HttpParserError("more than one answer")
        self._fields = Fields()
        self._status = 0

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._began:  # what comes after the head are trailers
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._reason = b""
            return
        self._status = status
        if status == 503 and self._may_refuse():
            self._settle(Outcome.REFUSED)
            return
        self._begin()

    def on_body(self, data: bytes) -> None:
        if not self._began:
            return
        if self._events:
            data = self._whole_events(data)
            if not data:
                return
        self._send(data)

    def on_message_complete(self) -> None:
        if self._began:
            self.reusable = self._parser.should_keep_alive() and not self._read_to_end
            self._finish()

    # What follows from it

    def _begin(self) -> None:
        self._began = True
        length = self._fields.get(b"content-length")
        coded = self._fields.get(b"transfer-encoding")
        if self._status in (204, 304):
            self._framing = Framing.NONE
        elif length and not coded:
            self._framing = Framing.LENGTH
        else:
            self._read_to_end = not coded
            self._framing = Framing.CHUNKED if self._client.http11 else Framing.CLOSE
            self._client.closing |= self._framing is Framing.CLOSE
        self._events = self._fields.get(b"content-type").startswith(b"text/event-stream")
        self._pending.append(
            response_head(
                self._status,
                self._reason,
                self._fields.lines(),
                self._framing,
                length,
                close=self._client.closing,
            )
        )
        self._life.answer(self._status)

    def _whole_events(self, data: bytes) -> bytes:
        """An event travels whole, so that an error can follow it wherever the engine dies."""
        data = self._partial_event + data
        if data.endswith(EVENT_ENDS):
            self._partial_event = b""
            return data
        end = max((data.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in data), default=0)
        self._partial_event = data[end:]
        return data[:end]

    def _finish(self) -> None:
        if self._partial_event:
            self._send(self._partial_event)
        self._end(Outcome.FINISHED)

    def _break_off(self) -> None:
        if self.outcome.done():
            return
        if self._began and self._events and self._framing is not Framing.LENGTH:
            self._send(b"data: %b\n\n" % interrupted(self._life.model).body())
            self._end(Outcome.CUT)
        else:
            self._settle(Outcome.CUT if self._began else Outcome.UNANSWERED)

    def _send(self, data: bytes) -> None:
        self._pending.append(chunk(data) if self._framing is Framing.CHUNKED else data)

    def _end(self, outcome: Outcome) -> None:
        if self._framing is Framing.CHUNKED:
            self._pending.append(LAST_CHUNK)
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _flush(self) -> None:
        if self._pending:
            self._client.write(b"".join(self._pending))
            self._pending.clear()
