"""The journal of a stream: all that another engine needs to continue it."""

from dataclasses import dataclass, field

import msgspec

from engine_server.contract.wire.continuation import (
    ROUTER_FIELD,
    RepeatedLogprobs,
    Resume,
    RouterFields,
    StreamTerms,
    TokenReport,
)
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.contract.wire.router_head import RESUME_LINE
from engine_server.router.http.wire import Message, Request
from engine_server.router.requests.answer_memory import FREE_BYTES, AnswerMemory
from engine_server.shared.body_buffer import Body

# What a token counts. An id and its comma take no more if it is below ten millions.
TOKEN_BYTES = 8
# A longer stream is not resumed.
MAX_TOKENS = (1 << 20) // TOKEN_BYTES
# A longer one claims memory for its tokens, and is not resumed if there is none.
FREE_TOKENS = FREE_BYTES // TOKEN_BYTES
# A stream with more bytes of log-probabilities is not resumed: both sides would parse them at once.
MAX_LOGPROB_BYTES = 2 << 20
MAX_RESUMES = 3

_encode = msgspec.json.Encoder().encode
_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_logprobs = msgspec.json.Decoder(list[RepeatedLogprobs]).decode


class StreamState(msgspec.Struct, frozen=True):
    """The state of a stream after an attempt, as far as the next one depends on it."""

    # The client has an event: another engine must continue the stream, and not start it again.
    begun: bool
    # Another engine can continue it, or start it again.
    resumable: bool
    # Empty if it has none.
    fingerprint: bytes


@dataclass(slots=True)
class Journal:
    """Records the groups of events that were sent to the client of one stream, over all engines that answer it."""

    # The fingerprint (`Fairlead-Model`) of the engine that began the stream; empty if it has none.
    fingerprint: bytes = b""
    # The settings of its streams (`Fairlead-Stream`); empty if it has none.
    settings: bytes = b""
    # Those of the first report; of a response also without reports.
    id: str = ""
    created: int = 0
    seed: int = 0
    # None before the first report.
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_hash: str | None = None
    # The number of tokens in all reports whose events were forwarded.
    num_tokens: int = 0
    # Their ids as in reports, with a comma after each; none if they are not kept.
    id_text: bytearray = field(default_factory=bytearray)
    # The log-probabilities of those reports, likewise.
    logprob_text: bytearray = field(default_factory=bytearray)
    # Number of events with data that were forwarded, and of a first one without.
    events: int = 0
    # Known at the end of the stream.
    usage: ReportedUsage | None = None
    # The client has the last event; only the end of the body may be missing.
    ended: bool = False
    # Reports cover all forwarded events.
    complete: bool = True
    # Number of times that the stream broke off and was continued.
    resumes: int = 0
    # None: unlimited.
    memory: AnswerMemory | None = None

    @property
    def begun(self) -> bool:
        """True if the client has an event: another engine must continue the stream, and not start it again."""
        return self.events > 0

    @property
    def state(self) -> StreamState:
        """The state of the stream, after the engine that sent it has failed."""
        known = bool(self.fingerprint) or not self.begun
        resumable = self.complete and self.resumes < MAX_RESUMES and known
        return StreamState(self.begun, resumable, self.fingerprint)

    @property
    def terms(self) -> StreamTerms:
        """What another engine has to share, as far as the one that began the stream told it."""
        return StreamTerms(self.cached_tokens, self.prompt_hash, self.settings.decode() or None)

    @property
    def token_ids(self) -> list[int]:
        """The ids of the tokens in all reports whose events were forwarded; none if they are not kept."""
        return _decode_ids(b"[" + self.id_text[:-1] + b"]")

    @property
    def logprobs(self) -> list[RepeatedLogprobs]:
        """The log-probabilities in those reports, likewise."""
        return _decode_logprobs(b"[" + self.logprob_text[:-1] + b"]")

    @property
    def known_usage(self) -> ReportedUsage | None:
        """The tokens of prompt and answer so far, or of the whole stream at its end; None if they are not known."""
        if self.usage is not None or self.prompt_tokens is None:
            return self.usage
        return ReportedUsage(self.prompt_tokens, self.num_tokens)

    def resume(self) -> None:
        """Prepare for another engine, after the last one failed. The stream must be resumable."""
        self.resumes += 1
        if not self.begun:
            self.fingerprint = self.settings = b""
            self.num_tokens = 0
            self.id_text.clear()
            self.logprob_text.clear()

    def record(self, report: TokenReport) -> None:
        """Record a report whose events are forwarded."""
        if not self.events and report.id is not None:
            self.id, self.created, self.seed = report.id, report.created or 0, report.seed
            self.cached_tokens, self.prompt_tokens = report.cached_tokens, report.prompt_tokens
            self.prompt_hash = report.prompt_hash
        if report.usage is not None:
            self.events += report.events
            self.usage = report.usage
            self.ended = True
        else:
            self.record_tokens(_encode(report.token_ids)[1:-1], len(report.token_ids), report.events)
            if report.logprobs:
                self._record_logprobs(_encode(report.logprobs)[1:-1])

    def record_tokens(self, ids: bytes, count: int, events: int) -> None:
        """Record tokens and the events that are forwarded with them. ids: theirs, valid ones, with commas between."""
        self.events += events
        self.num_tokens = total = self.num_tokens + count
        if count and self.complete:
            self.id_text += ids
            self.id_text += b","
            if total > MAX_TOKENS or (total > FREE_TOKENS and not self.cover(0)):
                self.forgo()

    def _record_logprobs(self, text: bytes) -> None:
        if self.complete:
            self.logprob_text += text
            self.logprob_text += b","
            if len(self.logprob_text) > MAX_LOGPROB_BYTES or not self.cover(0):
                self.forgo()

    def record_unreported(self) -> None:
        """Record an event that no report covers: the engine doesn't report this stream's tokens."""
        self.events += 1
        self.forgo()

    def cover(self, size: int) -> bool:
        """Hold what is kept and `size` bytes of unfinished events. Return False if there is no memory for them."""
        tokens = self.num_tokens if self.complete else 0
        kept = TOKEN_BYTES * tokens + len(self.logprob_text)
        return self.memory is None or self.memory.cover(kept + size)

    def release(self) -> None:
        """Return the memory: the stream has ended."""
        if self.memory is not None:
            self.memory.cover(0)

    def forgo(self) -> None:
        """Keep no tokens any more: the stream can't be resumed."""
        self.complete = False
        self.id_text.clear()
        self.logprob_text.clear()


def resume_body(body: Body, journal: Journal) -> bytes:
    """Return the body of the request that continues the stream, which `body` began.

    The field comes last: engines take the last of several fields of one name, so a client's own has no effect.
    """
    resume = Resume(
        id=journal.id,
        created=journal.created,
        seed=journal.seed,
        model=journal.fingerprint.decode("latin-1"),
        token_ids=journal.token_ids,
        events=journal.events,
        logprobs=journal.logprobs,
    )
    added = b',"%b":%b' % (ROUTER_FIELD.encode(), msgspec.json.encode(RouterFields(resume)))
    end = body.rfind(b"}", 0, len(body))
    view = memoryview(body)
    return b"".join((view[:end], added, view[end:]))


def resume_message(request: Request, lines: bytes, journal: Journal) -> Message:
    """Return the request that continues the stream, which `request` began, with further lines of the head."""
    lines += RESUME_LINE
    if journal.terms.value():
        lines += journal.terms.line()
    return request.message(lines, resume_body(request.body, journal))
