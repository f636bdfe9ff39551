"""Answers on their way from an engine to clients: passed on as they come."""

from collections.abc import Callable
from typing import Literal

from httptools import HttpParserError, HttpResponseParser

from .downstream import Downstream
from .endpoints import Endpoint
from .errors import interrupted
from .lifecycle import Lifecycle
from .wire import LAST_CHUNK, Fields, chunk, response_head

EVENT_ENDS = (b"\n\n", b"\r\n\r\n")

Outcome = Literal[
    "finished",  # the client has the whole answer
    "unreachable",  # no connection
    "unanswered",  # the connection ended before an answer began
    "refused",  # the engine answered 503, and the client has not seen it
    "cut",  # the answer broke off after the client had seen some of it
]


class Relay:
    """Parses what a connection brings, one answer after the other. Nothing reaches the client before the answer's head
    is whole, so that until then the request can go elsewhere. In the end, `outcome` says how it went."""

    reusable = False  # the connection is good for another answer

    def __init__(self) -> None:
        self._fields = Fields()
        self.on_header = self._fields.add
        self._parser = HttpResponseParser(self)
        self._pending: list[bytes] = []

    def begin(self, client: Downstream, life: Lifecycle, another: Callable[[], Endpoint | None]) -> None:
        """Be ready for an answer. A 503 is passed on only if there is not `another` endpoint to ask."""
        self._client = client
        self._life = life
        self._another = another
        self.outcome: Outcome | None = None
        self.reusable = False
        self._status = 0  # until the answer has begun
        self._chunked = False  # towards the client
        self._to_close = False  # the engine marks the answer's end by closing
        self._events = False  # as they come, not counted
        self._partial_event = b""
        self._begin_head()

    # What the engine says

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self.reusable = False
            self._break_off()
        self._flush()

    def close(self, *, orderly: bool) -> None:
        """The connection has ended."""
        if orderly and self._to_close:
            self._end(self._partial_event, "finished")
        else:
            self._break_off()
        self._flush()

    def _begin_head(self) -> None:
        self._reason = b""
        self._fields.begin()

    def on_status(self, reason: bytes) -> None:
        self.reusable = False  # whatever came before this
        self._reason += reason

    def on_headers_complete(self) -> None:
        if self.outcome is not None:
            raise HttpParserError("more than one answer")
        status = self._parser.get_status_code()
        if status < 200:
            self._begin_head()
            return
        if status == 503 and self._another():
            self.outcome = "refused"
            return
        self._status = status
        client, lines, read = self._client, self._fields.onward(), self._fields.read
        coded = b"transfer-encoding" in read
        if b"content-length" in read and not coded and status != 204:
            lines += b"Content-Length: %b\r\n" % read[b"content-length"]
        elif status not in (204, 304):
            self._to_close = not coded
            self._chunked = client.http11
            client.closing |= not client.http11
            lines += b"Transfer-Encoding: chunked\r\n" if client.http11 else b""
            self._events = read.get(b"content-type", b"").startswith(b"text/event-stream")
        self._pending.append(response_head(status, self._reason, lines, close=client.closing))

    def on_body(self, data: bytes) -> None:
        if self._events:
            data = self._whole_events(data)
        if data and self._status:
            self._pending.append(chunk(data) if self._chunked else data)

    def on_message_complete(self) -> None:
        if self._status:
            self._end(self._partial_event, "finished")
            self.reusable = self._parser.should_keep_alive()

    # What the client gets of it

    def _whole_events(self, data: bytes) -> bytes:
        """An event travels whole, so that an error can follow it wherever the engine dies."""
        data = self._partial_event + data
        if data.endswith(EVENT_ENDS):
            self._partial_event = b""
            return data
        end = max((data.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in data), default=0)
        self._partial_event = data[end:]
        return data[:end]

    def _break_off(self) -> None:
        if self.outcome is not None:
            return
        if self._events:
            self._end(b"data: %b\n\n" % interrupted(self._life.model).body(), "cut")
        else:
            self.outcome = "cut" if self._status else "unanswered"

    def _end(self, data: bytes, outcome: Outcome) -> None:
        if self._chunked:
            self._pending.append((chunk(data) if data else b"") + LAST_CHUNK)
        elif data:
            self._pending.append(data)
        self.outcome = outcome

    def _flush(self) -> None:
        """What has come goes to the client; if that is the end, the request goes on."""
        if self._pending:
            self._client.write(b"".join(self._pending))
            self._pending.clear()
            if self._life.waited is None:
                self._life.answer(self._status)
        if self.outcome is not None:
            self._client.resume()
