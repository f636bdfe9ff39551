"""One answer on its way from an engine to a client: passed on as it comes."""

from collections.abc import Callable
from enum import Enum

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
    """Nothing reaches the client before the answer's head is whole, so that until then the request can go
    elsewhere. In the end, `outcome` says how it went."""

    outcome: Outcome | None = None
    read_to_end = False  # the engine marks the answer's end by closing
    _framing = Framing.NONE
    _began = False
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
            self.outcome = Outcome.REFUSED
            return
        self._began = True
        self._life.answer(status)
        client = self._client
        length, coded = fields.read.get(b"content-length", b""), b"transfer-encoding" in fields.read
        if length and not coded:
            self._framing = Framing.LENGTH
        elif status not in (204, 304):
            self.read_to_end = not coded
            self._framing = Framing.CHUNKED if client.http11 else Framing.CLOSE
            client.closing |= not client.http11
        self._events = fields.read.get(b"content-type", b"").startswith(b"text/event-stream")
        head = response_head(status, reason, fields.onward(), self._framing, length, close=client.closing)
        self._pending.append(head)

    def body(self, data: bytes) -> None:
        if self._events:
            data = self._whole_events(data)
        if data and self._began:
            self._send(data)

    def finish(self) -> None:
        if self._began:
            if self._partial_event:
                self._send(self._partial_event)
            self._end(Outcome.FINISHED)

    def break_off(self) -> None:
        if self.outcome is not None:
            return
        if self._events and self._framing is not Framing.LENGTH:
            self._send(b"data: %b\n\n" % interrupted(self._life.model).body())
            self._end(Outcome.CUT)
        else:
            self.outcome = Outcome.CUT if self._began else Outcome.UNANSWERED

    def flush(self) -> None:
        if self._pending:
            self._client.write(b"".join(self._pending))
            self._pending.clear()

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

    def _send(self, data: bytes) -> None:
        self._pending.append(chunk(data) if self._framing is Framing.CHUNKED else data)

    def _end(self, outcome: Outcome) -> None:
        if self._framing is Framing.CHUNKED:
            self._pending.append(LAST_CHUNK)
        self.outcome = outcome
