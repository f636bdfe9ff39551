"""HTTP/1.1 as bytes: what a request is once it came, and the heads that are sent on."""

from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
LAST_CHUNK = b"0\r\n\r\n"

# Fields that end at a proxy: those between neighbours, those that it writes anew, and Fairlead's own.
OURS = frozenset(
    (
        *(
            b"connection",
            b"keep-alive",
            b"proxy-connection",
            b"te",
            b"trailer",
            b"transfer-encoding",
            b"upgrade",
        ),
        *(b"content-length", b"expect", b"http2-settings"),
        *(b"fairlead-report-tokens", b"fairlead-load"),
    )
)
READ = OURS | {b"host", b"content-type"}


class Framing(Enum):
    """How a body's end is told."""

    NONE = "no body"
    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "the connection's end"


class Fields:
    """A head's fields, sorted as they are parsed into those that we read and those that travel on as they came."""

    __slots__ = ("_lines", "_read")

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._read: dict[bytes, bytes] = {}

    def add(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key in READ:
            self._read[key] = value
        if key not in OURS:
            self._lines.append(b"%b: %b\r\n" % (name, value))

    def get(self, name: bytes) -> bytes:
        return self._read.get(name, b"")

    def lines(self) -> list[bytes]:
        """What travels on: not what Connection names either."""
        connection = self.get(b"connection").lower()
        if connection in (b"", b"keep-alive", b"close"):
            return self._lines
        named = {token.strip() for token in connection.split(b",")}
        return [line for line in self._lines if line.partition(b":")[0].lower() not in named]

    @property
    def size(self) -> int:
        return sum(map(len, self._lines))


class Request(NamedTuple):
    """One request, whole."""

    method: bytes
    target: bytes
    fields: Fields
    body: bytes
    http11: bool
    keep_alive: bool

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    def message(self) -> bytes:
        """The bytes that an engine gets: the same for every engine tried."""
        host = b"" if self.fields.get(b"host") else b"Host: fairlead\r\n"
        length = b"%bContent-Length: %d\r\n\r\n" % (host, len(self.body))
        return b"".join(
            (b"%b %b HTTP/1.1\r\n" % (self.method, self.target), *self.fields.lines(), length, self.body)
        )


def response_head(
    status: int, reason: bytes, lines: list[bytes], framing: Framing, length: bytes, *, close: bool
) -> bytes:
    head = [b"HTTP/1.1 %d %b\r\n" % (status, reason), *lines]
    if framing is Framing.LENGTH:
        head.append(b"Content-Length: %b\r\n" % length)
    elif framing is Framing.CHUNKED:
        head.append(b"Transfer-Encoding: chunked\r\n")
    head.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(head)


def origin_form(target: bytes) -> bytes:
    """Some clients write their target as to a proxy, with the whole address."""
    return target if target.startswith(b"/") else b"/" + b"/".join(target.split(b"/", 3)[3:])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
