"""HTTP/1.1 as bytes: header fields, requests, and the heads that are written."""

from collections import deque
from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from engine_server.contract.headers import ALL_HEADERS

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
LAST_CHUNK = b"0\r\n\r\n"
HOP_BY_HOP_FIELDS = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
# Fields that the router writes itself, or answers.
REWRITTEN_FIELDS = (b"content-length", b"expect", b"http2-settings")
NOT_FORWARDED = frozenset(
    (*HOP_BY_HOP_FIELDS, *REWRITTEN_FIELDS, *(name.lower().encode() for name in ALL_HEADERS))
)
# Fields that the router looks at: all that are not forwarded, and some that are.
READ = NOT_FORWARDED | {b"host", b"content-type"}
PARTS_PER_LINE = 4
# Takes what is added to a head after its end, which are trailers, and keeps nothing.
DISCARDED: deque[bytes] = deque(maxlen=0)


class Fields:
    """The header fields of one message at a time: those that the router reads, and the lines that it forwards."""

    __slots__ = ("_parts", "read")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the fields, so that the next message's can be added."""
        # Values by name in lower case.
        self.read: dict[bytes, bytes] = {}
        # Of the lines to forward: name, separator, value and line end of each.
        self._parts: list[bytes] | deque[bytes] = []

    def add(self, name: bytes, value: bytes) -> None:
        """Add one field as it was received."""
        key = name.lower()
        if key in READ:
            self.read[key] = value
            if key in NOT_FORWARDED:
                return
        self._parts.extend((name, b": ", value, b"\r\n"))

    def take_forwarded(self) -> bytes:
        """Return the lines to forward, without fields that Connection names, and ignore fields that follow."""
        parts, self._parts = self._parts, DISCARDED
        connection = self.read.get(b"connection")
        if connection is None or connection.lower() in (b"keep-alive", b"close"):
            return b"".join(parts)
        named = {token.strip() for token in connection.lower().split(b",")}
        received = list(parts)
        forwarded: list[bytes] = []
        for start in range(0, len(received), PARTS_PER_LINE):
            if received[start].lower() not in named:
                forwarded.extend(received[start : start + PARTS_PER_LINE])
        return b"".join(forwarded)


class Request(msgspec.Struct, frozen=True):
    """A request with its whole body."""

    method: bytes
    target: bytes
    # The lines of its head that are forwarded.
    lines: bytes
    body: bytearray
    # The client understands HTTP/1.1, chunked bodies included.
    http11: bool
    # The client's connection closes after the answer.
    last: bool

    def message(self) -> bytes:
        """Return the bytes to send to an engine; they are the same for every engine."""
        parts = (self.method, self.target, self.lines, len(self.body))
        return b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % parts + self.body


def response_head(status: int, reason: bytes, lines: bytes, *, close: bool) -> bytes:
    """Return the head of an answer with these header lines."""
    end = b"Connection: close\r\n\r\n" if close else b"\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b" % (status, reason, lines, end)


def own_response_head(
    status: int, length: int, content_type: bytes, lines: Sequence[bytes], *, close: bool
) -> bytes:
    """Return the head of an answer that the router gives itself, with a body of `length` bytes."""
    own = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, length)
    return response_head(status, REASONS[status], b"".join((own, *lines)), close=close)


def absolute_path(target: bytes) -> bytes:
    """Return the path of a target in absolute form, http://HOST/PATH, which some clients send to any server."""
    return b"/" + b"/".join(target.split(b"/", 3)[3:])


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
