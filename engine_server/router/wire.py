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
    """The head that a connection parses: the fields that we read, by their names in lower case, and the lines of
    those that travel on as they came."""

    __slots__ = ("_lines", "_open", "read")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be ready for another head."""
        self.read: dict[bytes, bytes] = {}
        self._lines: list[bytes] = []
        self._open = True

    def add(self, name: bytes, value: bytes) -> None:
        if not self._open:  # these are trailers
            return
        key = name.lower()
        if key in READ:
            self.read[key] = value
        if key not in OURS:
            self._lines.append(b"%b: %b\r\n" % (name, value))

    def onward(self) -> bytes:
        """The lines that travel on: not what Connection names either."""
        self._open = False
        connection = self.read.get(b"connection", b"").lower()
        if connection in (b"", b"keep-alive", b"close"):
            return b"".join(self._lines)
        named = {token.strip() for token in connection.split(b",")}
        return b"".join(line for line in self._lines if line.partition(b":")[0].lower() not in named)


class Request(NamedTuple):
    """One request, whole."""

    method: bytes
    target: bytes
    lines: bytes  # of its head: what travels on
    body: bytearray
    http11: bool
    last: bool  # on its connection

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    def message(self) -> bytes:
        """The bytes that an engine gets: the same for every engine tried."""
        head = b"%b %b HTTP/1.1\r\n%b" % (self.method, self.target, self.lines)
        return b"%bContent-Length: %d\r\n\r\n" % (head, len(self.body)) + self.body


def response_head(
    status: int, reason: bytes, lines: bytes, framing: Framing, length: bytes, *, close: bool
) -> bytes:
    if framing is Framing.LENGTH:
        lines += b"Content-Length: %b\r\n" % length
    elif framing is Framing.CHUNKED:
        lines += b"Transfer-Encoding: chunked\r\n"
    if close:
        lines += b"Connection: close\r\n"
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def origin_form(target: bytes) -> bytes:
    """Some clients write their target as to a proxy, with the whole address."""
    return target if target.startswith(b"/") else b"/" + b"/".join(target.split(b"/", 3)[3:])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
