"""HTTP/1.1 as bytes: what a request is once it came, and the heads that are sent on."""

from collections.abc import Iterable, Sequence
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
REQUEST_ONLY_OURS = HOP_BY_HOP | {b"content-length", b"expect", b"fairlead-report-tokens"}
RESPONSE_ONLY_OURS = HOP_BY_HOP | {b"content-length", b"fairlead-load"}

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Framing(Enum):
    """How a body's end is told."""

    NONE = "no body"
    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "the connection's end"


class Request(NamedTuple):
    """One request, whole."""

    method: bytes
    target: bytes
    headers: Sequence[Header]
    body: bytes
    http11: bool
    keep_alive: bool

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    def message(self) -> bytes:
        """The bytes that an engine gets: the same for every engine tried."""
        head = [b"%b %b HTTP/1.1\r\n" % (self.method, self.target)]
        head += lines(self.headers, REQUEST_ONLY_OURS)
        if find(self.headers, b"host") is None:
            head.append(b"Host: fairlead\r\n")
        head.append(b"Content-Length: %d\r\n\r\n" % len(self.body))
        head.append(self.body)
        return b"".join(head)


def find(headers: Iterable[Header], wanted: bytes) -> bytes | None:
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return None


def lines(headers: Sequence[Header], dropped: frozenset[bytes]) -> list[bytes]:
    """The header lines that travel on: neither those in `dropped` nor those that Connection names."""
    kept = []
    for name, value in headers:
        key = name.lower()
        if key not in dropped:
            kept.append(b"%b: %b\r\n" % (name, value))
        elif key == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named = {b"connection", *(token.strip().lower() for token in value.split(b","))}
            return lines([h for h in headers if h[0].lower() not in named], dropped)
    return kept


def response_head(
    status: int,
    reason: bytes,
    headers: Sequence[Header],
    framing: Framing,
    length: bytes,
    *,
    close: bool,
) -> bytes:
    head = [b"HTTP/1.1 %d %b\r\n" % (status, reason)]
    head += lines(headers, RESPONSE_ONLY_OURS)
    if framing is Framing.LENGTH:
        head.append(b"Content-Length: %b\r\n" % length)
    elif framing is Framing.CHUNKED:
        head.append(b"Transfer-Encoding: chunked\r\n")
    head.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(head)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
