"""The relay of one answer from an engine to a client."""

from typing import Literal

import msgspec

from engine_server.router.errors import interrupted
from engine_server.router.http.exchange import Wait
from engine_server.router.http.wire import LAST_CHUNK, Fields, chunk, response_head
from engine_server.router.requests.lifecycle import Lifecycle

EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


# The end of an attempt, which is also the reason of a retry in the metrics.
Outcome = Literal[
    # The client has the whole answer.
    "finished",
    # No connection could be opened.
    "unreachable",
    # The connection ended before the head of an answer.
    "unanswered",
    # The engine answered 503, and none of it was sent to the client.
    "refused",
    # The answer broke off after some of it was sent to the client.
    "cut",
]


class Relay(Wait):
    """Forwards one answer as it arrives; the exchange waits for its outcome.

    Nothing is sent to the client before the head of the answer is complete, nor of a 503 before `pass_on`: until then
    the request can be sent to another endpoint.
    """

    lifecycle: Lifecycle
    status: int = 0
    # A 503 that waits for the decision to pass it on.
    held: bool = False
    # The client gets a chunked body.
    chunked: bool = False
    # The engine marks the end of the answer by closing the connection.
    until_close: bool = False
    # The answer is a stream of server-sent events whose length is not declared.
    events: bool = False
    partial_event: bytes = b""
    # Bytes for the client that the next flush sends.
    pending: list[bytes] = msgspec.field(default_factory=list)
    outcome: Outcome | None = None

    async def pass_on(self) -> None:
        """Send a refusal that was held, and wait for the rest of the answer."""
        self.held = False
        self.flush()
        if self.outcome is None:
            await self

    # Called by the engine's connection

    def on_head(self, status: int, reason: bytes, fields: Fields) -> None:
        self.status = status
        self.held = status == 503
        lines, read = fields.take_forwarded(), fields.read
        request, client = self.exchange.request, self.exchange.client
        coded = b"transfer-encoding" in read
        if b"content-length" in read and not coded and status != 204:
            lines += b"Content-Length: %b\r\n" % read[b"content-length"]
        elif status not in (204, 304):
            self.until_close = not coded
            self.chunked = request.http11
            if self.chunked:
                lines += b"Transfer-Encoding: chunked\r\n"
            self.events = read.get(b"content-type", b"").startswith(b"text/event-stream")
        self.pending.append(response_head(status, reason, lines, close=client.closing))

    def on_body(self, data: bytes) -> None:
        if self.events:
            data = self._complete_events(data)
        if data:
            self.pending.append(chunk(data) if self.chunked else data)

    def on_end(self) -> None:
        if self.chunked or self.events:
            self._end_body(self.partial_event)
        self.outcome = "finished"

    def on_close(self) -> None:
        if self.until_close and self.outcome is None:
            self.on_end()
        else:
            self.on_failure()

    def on_failure(self) -> None:
        if self.outcome is not None:
            return
        if self.events:
            self._end_body(b"data: %b\n\n" % interrupted(self.lifecycle.model).body())
        self.outcome = "cut" if self.status else "unanswered"

    def flush(self) -> None:
        if self.pending and not self.held:
            self.exchange.client.write(b"".join(self.pending))
            self.pending.clear()
            if self.lifecycle.time_to_first_byte is None:
                self.lifecycle.record_answer(self.status)
        if self.held or self.outcome is not None:
            self.exchange.resume(self)

    def _complete_events(self, data: bytes) -> bytes:
        """Return the events that `data` completes; a client gets whole events, so that an error can follow each."""
        data = self.partial_event + data
        if data.endswith(EVENT_ENDS):
            self.partial_event = b""
            return data
        end = max((data.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in data), default=0)
        self.partial_event = data[end:]
        return data[:end]

    def _end_body(self, data: bytes) -> None:
        """Append the last piece of a body whose length was not declared."""
        if self.chunked:
            self.pending.append((chunk(data) if data else b"") + LAST_CHUNK)
        elif data:
            self.pending.append(data)
