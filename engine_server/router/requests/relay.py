"""The relay of one answer from an engine to a client."""

import asyncio

import msgspec
from msgspec.structs import replace

from engine_server.contract.wire.engine_report import EngineReport
from engine_server.router import errors
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.exchange import UNBUFFERED, Wait
from engine_server.router.http.upstream import EngineConnection
from engine_server.router.http.wire import LAST_CHUNK, Fields, chunk, response_head
from engine_server.router.rejections import Reason, Sender
from engine_server.router.requests.answer_memory import AnswerMemory
from engine_server.router.requests.event_reader import EventReader
from engine_server.router.requests.journal import Journal
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.outcome import (
    DEFAULT_RETRY_AFTER_SECONDS,
    FINISHED,
    MAX_REFUSAL_BYTES,
    REFUSAL_STATUSES,
    REFUSED,
    AttemptResult,
    Outcome,
    Refusal,
    read_refusal,
)
from engine_server.router.requests.steady_stream import steady_kind

EVENT_STREAM = b"text/event-stream"
UNENCODED = (b"", b"identity")
# Answers with the `Fairlead-Model` of an adapter; further errors have that of the model itself.
ADAPTER_STATUSES = (200, 409)


class Relay(Wait):
    """Forwards one answer as it arrives; the exchange waits for its outcome.

    Nothing is sent to the client before the head of the answer is complete, nor of a refusal before `pass_on`: until
    then the request can be sent to another endpoint. A refusal is read to its end, which keeps its connection usable.
    If the client has the head of a stream already, the answer continues it without a head of its own.
    """

    lifecycle: Lifecycle
    # For what a stream holds; None: unlimited.
    budget: BodyBudget | None = None
    # On which the answer arrives; None if no connection could be opened.
    connection: EngineConnection | None = None
    status: int = 0
    # The answer is a refusal: it waits for the decision to pass it on.
    held: bool = False
    retry_after: bytes | None = None
    # The body of a refusal as the engine sent it.
    refusal_body: bytes = b""
    # The client gets a chunked body.
    chunked: bool = False
    # The engine marks the end of the answer by closing the connection.
    until_close: bool = False
    # The engine has reported a fingerprint, which engines of other makes have not.
    has_fingerprint: bool = False
    # The answer has an encoding, such as gzip. A stream of compressed events passes as it comes.
    encoded: bool = False
    compressed: bool = False
    # Set if the answer is a stream of server-sent events that can be read.
    events: EventReader | None = None
    # Bytes for the client that the next flush sends.
    pending: list[bytes] = msgspec.field(default_factory=list)
    outcome: Outcome | None = None
    # The error for which no new connection could be opened.
    connect_error: OSError | None = None
    # Something has arrived since the last sweep of the watch.
    received: bool = True
    # Time (perf_counter) of the last sweep that found that something had arrived.
    silent_since: float = 0.0

    @property
    def result(self) -> AttemptResult:
        """The result of the attempt, which has ended."""
        assert self.outcome is not None
        refusal, journal = None, self.lifecycle.journal
        packed = self.exchange.request.packed
        if journal is not None and packed is not None and packed.data is None:
            journal.forgo()
        if self.outcome is Outcome.REFUSED:
            refusal = self.refusal
        elif (
            self.outcome is Outcome.INTERRUPTED and self.events is not None and self.events.error is not None
        ):
            refusal = Refusal(503, self.events.error, DEFAULT_RETRY_AFTER_SECONDS)
        stream = None if journal is None else journal.state
        starved = self.events is not None and self.events.starved
        return AttemptResult(self.outcome, refusal, stream, self.connect_error, starved)

    @property
    def refusal(self) -> Refusal:
        """The refusal that was held; one that is too long or encoded has neither code nor message."""
        readable = len(self.refusal_body) <= MAX_REFUSAL_BYTES and not self.encoded
        body = self.refusal_body if readable else b""
        return read_refusal(self.status, self.retry_after, body)

    def pass_on(self) -> None:
        """Send the refusal that was held. Raises RequestError if the client has the head of a stream."""
        if self.exchange.streaming:
            refusal = self.refusal
            raise errors.refused(self.lifecycle.model, refusal.status, refusal.code, refusal.message)
        self.held = False
        self.flush()

    def break_off(self) -> None:
        """End the attempt, whose engine is silent for too long."""
        if self.outcome is not None:
            return
        if self.status == 0:
            self.outcome = Outcome.SILENT
        elif self.held:
            self.outcome = Outcome.REFUSED
        else:
            self.on_failure()
        self.flush()

    # Called by the engine's connection

    def on_head(self, status: int, reason: bytes, fields: Fields) -> None:
        self.status = status
        lines, read = fields.take_forwarded() + self.exchange.lines, fields.read
        exchange = self.exchange
        endpoint, adapter = self.lifecycle.endpoint, self.lifecycle.adapter
        streams = read.get(b"content-type", b"").startswith(EVENT_STREAM)
        self.encoded = read.get(b"content-encoding", b"").lower() not in UNENCODED
        self.compressed = streams and self.encoded
        if status in REFUSAL_STATUSES or (exchange.streaming and not (streams and status == 200)):
            self.held = True
            self.retry_after = read.get(b"retry-after")
        elif endpoint is not None:
            endpoint.refused = False
        report = EngineReport.parse(read)
        self.has_fingerprint = bool(report.fingerprint)
        if report.num_invalid:
            self.lifecycle.metrics.rejections.add(Sender.ENGINE, Reason.OUT_OF_RANGE, report.num_invalid)
        if endpoint is not None:
            if adapter and status not in ADAPTER_STATUSES:
                report = replace(report, fingerprint=b"")
            endpoint.record_report(report, adapter)
        if report.usage is not None:
            self.lifecycle.usage = report.usage
        if exchange.streaming and self.compressed and not self.held:
            self.held, self.outcome = True, Outcome.UNFIT
            return
        if streams and not exchange.streaming:
            given = lines.lower()
            lines += b"".join(line for name, line in UNBUFFERED.items() if name not in given)
        coded = b"transfer-encoding" in read
        if b"content-length" in read and not coded and status != 204:
            lines += b"Content-Length: %b\r\n" % read[b"content-length"]
        elif status not in (204, 304):
            self.until_close = not coded
            self.chunked = exchange.request.http11
            if self.chunked:
                lines += b"Transfer-Encoding: chunked\r\n"
            if streams and not (self.held or self.compressed):
                self._begin_stream(report.fingerprint, report.settings)
                if exchange.streaming:
                    return
                exchange.streaming = True
        self.pending.append(response_head(status, reason, lines, close=exchange.client.closing))

    def on_body(self, data: bytes) -> None:
        if self.held:
            if len(self.refusal_body) <= MAX_REFUSAL_BYTES:
                self.refusal_body += data
            too_long = len(self.refusal_body) > MAX_REFUSAL_BYTES
            if self.exchange.streaming or (too_long and self.status >= 500):
                if too_long and self.outcome is None:
                    self.outcome = Outcome.REFUSED  # its rest, which may have no end, is not waited for
                return
            self.held = not too_long
        if self.events is not None:
            try:
                data = self.events.read(data)
            except (ValueError, RecursionError):
                self.lifecycle.metrics.rejections.add(Sender.ENGINE, Reason.OUT_OF_RANGE)
                raise ValueError("the report is not valid") from None
            if self.events.broken and self.outcome is None:
                if self.events.starved:
                    self.lifecycle.metrics.rejections.add(Sender.ENGINE, Reason.NO_MEMORY)
                self._interrupt()
        if data:
            if self.compressed:
                self.lifecycle.compressed_bytes += len(data)
            self.pending.append(chunk(data) if self.chunked else data)

    def on_end(self) -> None:
        if self.outcome is not None:
            return
        rest = self.events.end() if self.events is not None else b""
        if rest is None:
            self._interrupt()
            return
        if rest or self.chunked:
            self._end_body(rest)
        self.outcome = REFUSED if self.held else FINISHED

    def on_close(self) -> None:
        if self.until_close and self.outcome is None:
            self.on_end()
        else:
            self.on_failure()

    def on_excess(self) -> None:
        if self.outcome is None:
            self.lifecycle.metrics.rejections.add(Sender.ENGINE, Reason.HEAD_TOO_LARGE)
        self.on_failure()

    def on_failure(self) -> None:
        if self.outcome is not None:
            return
        if self.status == 0 or self.held:
            self.outcome = Outcome.UNANSWERED
        elif self.events is not None and self.events.ended:
            self._end_body(b"")
            self.outcome = Outcome.FINISHED
        else:
            self._interrupt()

    def flush(self) -> None:
        self.received = True
        if self.pending and not self.held:
            self.exchange.client.write(b"".join(self.pending))
            self.pending.clear()
            if self.lifecycle.time_to_first_byte is None:
                self.lifecycle.record_answer(self.status)
        if self.outcome is not None:
            self.exchange.resume(self)

    def steady_state(self, data: bytes) -> asyncio.Protocol | None:
        events, journal, connection = self.events, self.lifecycle.journal, self.connection
        if events is None or self.outcome is not None or not (self.chunked and events.at_rest):
            return None
        kind = steady_kind(data, reported=not events.plain)
        if kind is None or journal is None or connection is None:
            return None
        return kind(connection, self, journal, self.exchange.client.write)

    def _begin_stream(self, fingerprint: bytes, settings: bytes) -> None:
        """Read the body as a stream of events of an engine with this fingerprint and these settings of streams."""
        journal = self.lifecycle.journal
        if journal is None:
            journal = self.lifecycle.journal = Journal(memory=self._memory())
        if not journal.fingerprint:
            journal.fingerprint, journal.settings = fingerprint, settings
        self.events = EventReader(journal)

    def _memory(self) -> AnswerMemory | None:
        deployment = self.lifecycle.deployment
        if self.budget is None or deployment is None:
            return None
        return AnswerMemory(self.budget, deployment)

    def _interrupt(self) -> None:
        self.outcome = Outcome.INTERRUPTED
        if (journal := self.lifecycle.journal) is not None:
            self.exchange.sent = replace(
                self.exchange.sent, num_events=journal.events, id=journal.id, created=journal.created
            )

    def _end_body(self, data: bytes) -> None:
        """Append the last piece of a body whose length was not declared."""
        if self.chunked:
            self.pending.append((chunk(data) if data else b"") + LAST_CHUNK)
        elif data:
            self.pending.append(data)
