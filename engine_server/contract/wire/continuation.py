"""Continuation of a stream on another engine: the reports of one engine, and the request to the next.

With the request header `Fairlead-Report-Tokens: 1` an engine writes a report, a comment line, before the events that
each step adds to a stream. The router strips it, and forwards the events of a report together or not at all. When the
engine is lost, the router sends the same body again, with the field `fairlead`, the header `Fairlead-Resume: 1`, and
in `Fairlead-Stream` what has to be the same: the prompt, the settings of streams, and the cached tokens in the usage.
The next engine sends the events that follow, byte for byte. Only streams of one choice can be continued: of others
the last report alone is sent, without tokens, before the end of the stream.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from engine_server.contract.base.decoding import decode
from engine_server.contract.base.ranges import MOST, Count, Int64, Timestamp
from engine_server.contract.wire.digests import DIGEST_LENGTH, Digest, is_digest
from engine_server.contract.wire.engine_report import Fingerprint, ReportedUsage
from engine_server.contract.wire.headers import STREAM, HeaderField

# The id of an answer, which an engine may derive from that of a request.
AnswerId = Annotated[str, msgspec.Meta(max_length=1024)]
# The beginning of a report's line.
REPORT_PREFIX = b": fairlead "
# The field of a request's body with the router's fields.
ROUTER_FIELD = "fairlead"
# At most of it, beside the client's own body: 131,072 token ids and 2 MiB of log-probabilities.
ROUTER_FIELD_BYTES = 4 << 20
# A number that is raised when the same settings and the same request make another prompt, or other events. Streams are
# continued only between engines with the same one.
RENDERING = 3
_COUNT = re.compile(r"[0-9]{1,10}")


class ReportedLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's log-probability at one place of the text."""

    token_id: Count
    logprob: Annotated[float, msgspec.Meta(ge=-float(MOST), le=float(MOST))]
    # 1 is the likeliest token.
    rank: Count | None
    # What the token adds to the text.
    text: str | None


class RepeatedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probabilities at one place of the text that later events of the stream repeat."""

    # The index of the output's item that has the text.
    item: Count
    # The token of the text first.
    entries: list[ReportedLogprob]


class TokenReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of the events that follow."""

    seed: Int64
    # The tokens since the previous report. Tokens whose text is held back may come with no event.
    token_ids: list[Count] = []
    # Number of events up to the next report.
    events: Count = 0
    # Those of the events that later ones repeat: only of the responses API.
    logprobs: list[RepeatedLogprobs] = []
    # The id and the creation time of the answer, in seconds since the epoch; only in the first report.
    id: AnswerId | None = None
    created: Timestamp | None = None
    # Prompt tokens found in the prefix cache; only in the first report.
    cached_tokens: Count | None = None
    # The length of the prompt; only in the first report.
    prompt_tokens: Count | None = None
    # That of the prompt's tokens and pictures; only in the first report.
    prompt_hash: Digest | None = None
    # Only in the last report.
    usage: ReportedUsage | None = None

    def encode(self) -> bytes:
        """Return the comment line of the report, with its line end."""
        return b"%b%b\n" % (REPORT_PREFIX, _encode(self))

    @classmethod
    def decode(cls, line: bytes) -> "TokenReport":
        """Parse a comment line, with or without its line end. Raises ValueError."""
        return decode(_report_decoder.decode, line[len(REPORT_PREFIX) :])


_encode = msgspec.json.Encoder().encode
_report_decoder = msgspec.json.Decoder(TokenReport)


def prompt_hash(token_ids: Sequence[int], pictures: Sequence[str] = ()) -> str:
    """Return the hash of a prompt's tokens, and of the digests of its pictures in order.

    It is part of the contract: engines of all releases compute the same.
    """
    parts = msgspec.json.encode(token_ids) + (msgspec.json.encode(pictures) if pictures else b"")
    return hashlib.sha256(parts).hexdigest()[:DIGEST_LENGTH]


class StreamTerms(HeaderField, msgspec.Struct, frozen=True):
    """What a continuation has to share with its stream, besides `Resume`: the request header `Fairlead-Stream`.

    It is no field of `Resume`, of which an engine knows all fields or refuses the request: here it ignores what it
    does not know. None: it is not known.
    """

    NAME = STREAM

    # Those of the first report.
    cached_tokens: int | None = None
    prompt_hash: str | None = None
    # The header `Fairlead-Stream` of the engine that began the stream.
    settings: str | None = None

    def value(self) -> str:
        """Return the field's value; empty if nothing is known."""
        pairs = {"cached": self.cached_tokens, "prompt": self.prompt_hash, "settings": self.settings}
        return ", ".join(f"{name}={value}" for name, value in pairs.items() if value is not None)

    @classmethod
    def parse(cls, value: str) -> "StreamTerms":
        """Return the terms in the field's value. Other pairs, and those of another form or range, are ignored."""
        pairs = dict(pair.partition("=")[::2] for pair in value.split(", "))
        cached, prompt, settings = (pairs.get(name, "") for name in ("cached", "prompt", "settings"))
        return cls(
            int(cached) if _COUNT.fullmatch(cached) and int(cached) <= MOST else None,
            prompt if is_digest(prompt) else None,
            settings if is_digest(settings) else None,
        )


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of a stream that is to be continued: `fairlead.resume` in a request's body."""

    # Those of the first report.
    id: AnswerId
    created: Timestamp
    seed: Int64
    # The fingerprint (`Fairlead-Model`) of the engine that began the stream.
    model: Annotated[str, msgspec.Meta(max_length=Fingerprint.LONGEST)]
    # All reported tokens.
    token_ids: list[Count]
    # Number of forwarded events.
    events: Count
    # All reported ones.
    logprobs: list[RepeatedLogprobs] = []


class RouterFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field `fairlead` of a request's body."""

    resume: Resume
