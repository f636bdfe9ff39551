"""Continuation of a stream on another engine: the reports of one engine, and the request to the next.

With the request header `Fairlead-Report-Tokens: 1` an engine writes a report, a comment line, before the events that
each step adds to a stream. The router strips it, and forwards the events of a report together or not at all. When the
engine is lost, the router sends the same body again, with the field `fairlead`, the header `Fairlead-Resume: 1`, and
the first report's cached tokens in `Fairlead-Stream`, so that the usage is the same.
The next engine sends the events that follow, byte for byte. Only streams of one choice can be continued: of others
the last report alone is sent, without tokens, before the end of the stream.
"""

import re
from typing import Annotated

import msgspec

from engine_server.contract.decoding import decode
from engine_server.contract.ranges import MOST, Count, Int64, Timestamp, Word

# The id of an answer, which an engine may derive from that of a request.
AnswerId = Annotated[str, msgspec.Meta(max_length=1024)]
# The beginning of a report's line.
REPORT_PREFIX = b": fairlead "
# The field of a request's body with the router's fields.
ROUTER_FIELD = "fairlead"
_CACHED = re.compile(r"cached=([0-9]{1,10})(,.*)?")
_USAGE = re.compile(rb"prompt=([0-9]{1,10}), completion=([0-9]{1,10})")


class ReportedUsage(msgspec.Struct, frozen=True):
    """Numbers of tokens of a whole answer."""

    prompt_tokens: Count
    completion_tokens: Count

    def header(self) -> str:
        """Return the value of the header `Fairlead-Usage`."""
        return f"prompt={self.prompt_tokens}, completion={self.completion_tokens}"

    @classmethod
    def parse_header(cls, value: bytes) -> "ReportedUsage | None":
        """Return the numbers in a value of `Fairlead-Usage`, or None for another form or numbers out of range."""
        match = _USAGE.fullmatch(value)
        if match is None:
            return None
        usage = cls(int(match[1]), int(match[2]))
        return usage if max(usage.prompt_tokens, usage.completion_tokens) <= MOST else None


class TokenReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of the events that follow."""

    seed: Int64
    # The tokens since the previous report. Tokens whose text is held back may come with no event.
    token_ids: list[Count] = []
    # Number of events up to the next report.
    events: Count = 0
    # The id and the creation time of the answer, in seconds since the epoch; only in the first report.
    id: AnswerId | None = None
    created: Timestamp | None = None
    # Prompt tokens found in the prefix cache; only in the first report.
    cached_tokens: Count | None = None
    # The length of the prompt; only in the first report.
    prompt_tokens: Count | None = None
    # Only in the last report.
    usage: ReportedUsage | None = None

    def encode(self) -> bytes:
        """Return the comment line of the report, with its line end."""
        return REPORT_PREFIX + msgspec.json.encode(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "TokenReport":
        """Parse a comment line, with or without its line end. Raises ValueError."""
        return decode(_report_decoder.decode, line[len(REPORT_PREFIX) :])


_report_decoder = msgspec.json.Decoder(TokenReport)


def stream_header(cached_tokens: int) -> str:
    """Return the value of the header `Fairlead-Stream` for a stream whose first report has this count.

    It is no field of `Resume`, of which earlier engines know all fields or refuse the request.
    """
    return f"cached={cached_tokens}"


def parse_stream_header(value: str) -> int | None:
    """Return the count in a value of `Fairlead-Stream`, or None for another form or a number out of range."""
    match = _CACHED.fullmatch(value)
    return int(match[1]) if match and int(match[1]) <= MOST else None


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a stream that is to be continued: `fairlead.resume` in a request's body."""

    # Those of the first report.
    id: AnswerId
    created: Timestamp
    seed: Int64
    # The Fairlead-Model header of the engine that began the stream.
    model: Word
    # All reported tokens.
    token_ids: list[Count]
    # Number of forwarded events.
    events: Count


class RouterFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field `fairlead` of a request's body."""

    resume: Resume
