"""All that a router says to an engine in the head of a request, beside the client's own."""

from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from engine_server.contract.base.caller import ReportedCaller
from engine_server.contract.wire.continuation import StreamTerms
from engine_server.contract.wire.headers import ADAPTER, CALLER, DEPLOYMENT, REPORT_TOKENS, RESUME, line

REPORT_TOKENS_LINE = line(REPORT_TOKENS, "1")
RESUME_LINE = line(RESUME, "1")
_CALLER_KEY = CALLER.lower().encode()


class RouterHead(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is told. Without a router it is told nothing, and answers as any server of its API does."""

    # NAMESPACE/NAME of the deployment that must answer, and the adapter; None: the body names them.
    deployment: str | None = None
    adapter: str | None = None
    # A stream's tokens are reported.
    reports_tokens: bool = False
    # The body continues a stream.
    resumes: bool = False
    # What has to be the same as in the stream that is continued.
    terms: StreamTerms = StreamTerms()
    caller: ReportedCaller | None = None

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self:
        """Return what a request's headers say. Raises ValueError for a caller of another form than a router's."""
        resumes = continues_stream(headers)
        return cls(
            deployment=headers.get(DEPLOYMENT),
            adapter=headers.get(ADAPTER),
            reports_tokens=headers.get(REPORT_TOKENS) == "1",
            resumes=resumes,
            terms=StreamTerms.parse(headers.get(StreamTerms.NAME, "")) if resumes else StreamTerms(),
            caller=reported_caller(headers),
        )


def without_caller(fields: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return a request's fields, whose names are in lower case, without a caller that anybody may have written."""
    return [field for field in fields if field[0] != _CALLER_KEY]


def continues_stream(headers: Mapping[str, str]) -> bool:
    """Return True for a request whose body continues a stream."""
    return headers.get(RESUME) == "1"


def reported_caller(headers: Mapping[str, str]) -> ReportedCaller | None:
    """Return the caller; None if none is reported. Raises ValueError for another form than a router's."""
    value = headers.get(CALLER)
    if value is None:
        return None
    caller = ReportedCaller.parse(value)
    if caller is None:
        raise ValueError(f"{CALLER} takes id=32 HEX DIGITS, scope=32 HEX DIGITS, priority=INTEGER")
    return caller


def caller_line(caller: ReportedCaller) -> bytes:
    """Return the line that reports a caller."""
    return line(CALLER, caller.value())


def recipient_lines(deployment: str | None, adapter: str | None) -> bytes:
    """Return the lines that name who must answer."""
    names = {DEPLOYMENT: deployment, ADAPTER: adapter}
    return b"".join(line(name, value) for name, value in names.items() if value is not None)
