"""The result of an attempt, and the refusal of an engine that another replica may not share."""

import math
from enum import StrEnum

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.quoting import MAX_QUOTE, shorten
from engine_server.contract.base.ranges import Int64
from engine_server.contract.wire.errors import ErrorCode
from engine_server.router.requests.journal import StreamState


class Outcome(StrEnum):
    """The end of one attempt at a replica."""

    # The client has the whole answer.
    FINISHED = "finished"
    # No connection could be opened.
    UNREACHABLE = "unreachable"
    # The connection ended before the client got a byte.
    UNANSWERED = "unanswered"
    # The watch ended the attempt before the client got a byte.
    SILENT = "silent"
    # The engine answered with an error that another replica may not give. It is held: the client got nothing of it.
    REFUSED = "refused"
    # The answer is a stream of compressed events, and the client has a head that names no encoding.
    UNFIT = "unfit"
    # The answer broke off after some of it was sent to the client.
    INTERRUPTED = "interrupted"


# The path of each request uses them: in Python 3.11 the lookup of a member costs as much as several calls.
FINISHED, REFUSED, UNANSWERED = Outcome.FINISHED, Outcome.REFUSED, Outcome.UNANSWERED
UNFIT = Outcome.UNFIT

# Statuses of refusals. Others are passed on as they arrive: 501 and 504 would be the same at each replica.
REFUSAL_STATUSES = frozenset((404, 409, 500, 502, 503))
# Longer bodies are not the errors of an engine. Those of statuses below 500 are passed on as they arrive.
MAX_REFUSAL_BYTES = 16 * 1024
DEFAULT_RETRY_AFTER_SECONDS = 1.0
# An engine that is always full costs no more than its share of attempts, and one that errs is not lost for long.
SHORTEST_RETRY_AFTER_SECONDS = 0.05
LONGEST_RETRY_AFTER_SECONDS = 60.0


class Refusal(msgspec.Struct, frozen=True):
    """An error that an engine answered with."""

    status: int
    # None if the body has none that we know, as with engines of another make.
    code: ErrorCode | None
    # Seconds after which the engine is tried again.
    retry_after: float
    # Empty if the body has none.
    message: str = ""
    # The beginning of the message, or else of the body, for the log.
    text: str = ""


class AttemptResult(msgspec.Struct, frozen=True):
    """All that one attempt found out."""

    outcome: Outcome
    # The error that the engine answered with, or for which it broke off a stream.
    refusal: Refusal | None = None
    # None if the client has no stream of events.
    stream: StreamState | None = None
    # The error for which no new connection could be opened.
    connect_error: OSError | None = None
    # The stream was broken off for lack of the router's memory.
    starved: bool = False


class _Detail(msgspec.Struct):
    code: str | Int64 | None = None
    message: str = ""


class _Body(msgspec.Struct):
    error: _Detail


_decoder = msgspec.json.Decoder(_Body)


def read_refusal(status: int, retry_after: bytes | None, body: bytes) -> Refusal:
    """Return the refusal that an answer means. OpenAI's and Anthropic's shapes have its parts at the same places."""
    try:
        detail = decode(_decoder.decode, body).error
    except ValueError:
        detail = _Detail()
    code = ErrorCode.parse(detail.code)
    text = detail.message or body[:MAX_QUOTE].decode(errors="replace")
    return Refusal(status, code, read_seconds(retry_after), detail.message, shorten(text))


def read_seconds(retry_after: bytes | None) -> float:
    """Return the value of a Retry-After field in seconds, within bounds; a date or nonsense means the default."""
    try:
        seconds = float(retry_after or b"")
    except ValueError:
        return DEFAULT_RETRY_AFTER_SECONDS
    if not 0.0 <= seconds < math.inf:
        return DEFAULT_RETRY_AFTER_SECONDS
    return min(max(seconds, SHORTEST_RETRY_AFTER_SECONDS), LONGEST_RETRY_AFTER_SECONDS)
