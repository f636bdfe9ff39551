"""HTTP/1.1 as bytes: what a request is once it came, and the heads that are sent on."""

from collections import deque
from http import HTTPStatus

import msgspec

from engine_server.contract.headers import ALL_HEADERS

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
LAST_CHUNK = b"0\r\n\r\n"

# Header fields that are not forwarded: hop-by-hop fields, fields that the router writes itself, and Fairlead's own.
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
        *(name.lower().encode() for name in ALL_HEADERS),
    )
)
READ = OURS | {b"host", b"content-type"}
NOWHERE: deque[bytes] = deque(maxlen=0)


class Fields:
    """The head that a connection parses: the fields that we read, by their names in lower case, and the lines of
    those that travel on as they came."""

    __slots__ = ("_onward", "read")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be ready for another head."""
        self.read: dict[bytes, bytes] = {}
        self._onward: list[bytes] | deque[bytes] = []  # name, colon, value and line's end of each

    def add(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key in READ:
            self.read[key] = value
            if key in OURS:
                return
        self._onward.extend((name, b": ", value, b"\r\n"))

    def onward(self) -> bytes:
        """The lines that travel on: not what Connection names either."""
        parts, self._onward = self._onward, NOWHERE  # where trailers go
        connection = self.read.get(b"connection")
        if connection is None or connection.lower() in (b"keep-alive", b"close"):
            return b"".join(parts)
        named = {token.strip() for token in connection.lower().split(b",")}
        lines = zip(*[iter(parts)] * 4, strict=True)
        return b"".join(part for line in lines if line[0].lower() not in named for part in line)


class Request(msgspec.Struct, frozen=True):
    """One request, whole."""

    method: bytes
    target: bytes
    lines: bytes  # of its head: what travels on
    body: bytearray
    http11: bool
    last: bool  # on its connection

    def message(self) -> bytes:
        """The bytes that an engine gets: the same for every engine tried."""
        parts = (self.method, self.target, self.lines, len(self.body))
        return b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % parts + self.body


def response_head(status: int, reason: bytes, lines: bytes, *, close: bool) -> bytes:
    end = b"Connection: close\r\n\r\n" if close else b"\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b" % (status, reason, lines, end)


def absolute_path(target: bytes) -> bytes:
    """Some clients write their target as to a proxy, with the whole address."""
    return b"/" + b"/".join(target.split(b"/", 3)[3:])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
