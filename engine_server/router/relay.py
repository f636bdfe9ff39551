"""One answer on its way from an engine to a client: passed on as it comes."""

from collections.abc import Callable
from typing import Literal

from .downstream import Downstream
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
    """Nothing reaches the client before the answer's head is whole, so that until then the request can go
    elsewhere. In the end, `outcome` says how it went."""

    outcome: Outcome | None = None
    read_to_end = False  # the engine marks the answer's end by closing
    _began = False
    _counted = False  # its length is in its head
    _chunked = False  # towards the client
    _events = False
    _partial_event = b""

    def __init__(self, client: Downstream, life: Lifecycle, may_refuse: Callable[[], bool]) -> None:
        self._client = client
        self._life = life
        self._may_refuse = may_refuse
        self._pending: list[bytes] = []

    # What the engine says

    def head(self, status: int, reason: bytes, fields: Fields) -> None:
        if status == 503 and self._may_refuse():
            self.outcome = "refused"
            return
        self._began = True
        self._life.answer(status)
        client, read, lines = self._client, fields.read, fields.onward()
        coded = b"transfer-encoding" in read
        if b"content-length" in read and not coded and status != 204:
            self._counted = True
            lines += b"Content-Length: %b\r\n" % read[b"content-length"]
        elif status not in (204, 304):
            self.read_to_end = not coded
            self._chunked = client.http11
            client.closing |= not client.http11
            lines += b"Transfer-Encoding: chunked\r\n" if client.http11 else b""
        self._events = read.get(b"content-type", b"").startswith(b"text/event-stream")
        self._pending.append(response_head(status, reason, lines, close=client.closing))

    def body(self, data: bytes) -> None:
        if self._events:
            data = self._whole_events(data)
        if data and self._began:
            self._pending.append(chunk(data) if self._chunked else data)

    def finish(self) -> None:
        if self._began:
            self._end(self._partial_event, "finished")

    def break_off(self) -> None:
        if self.outcome is not None:
            return
        if self._events and not self._counted:
            self._end(b"data: %b\n\n" % interrupted(self._life.model).body(), "cut")
        else:
            self.outcome = "cut" if self._began else "unanswered"

    def flush(self) -> None:
        """What has come goes to the client; if that is the end, the request goes on."""
        if self._pending:
            self._client.write(b"".join(self._pending))
            self._pending.clear()
        if self.outcome is not None:
            self._client.resume()

    # What follows from it

    def _whole_events(self, data: bytes) -> bytes:
        """An event travels whole, so that an error can follow it wherever the engine dies."""
        data = self._partial_event + data
        if data.endswith(EVENT_ENDS):
            self._partial_event = b""
            return data
        end = max((data.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in data), default=0)
        self._partial_event = data[end:]
        return data[:end]

    def _end(self, data: bytes, outcome: Outcome) -> None:
        if self._chunked:
            self._pending.append((chunk(data) if data else b"") + LAST_CHUNK)
        elif data:
            self._pending.append(data)
        self.outcome = outcome
