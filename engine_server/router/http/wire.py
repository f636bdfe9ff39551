"""HTTP/1.1 as bytes: header fields, requests, and the heads that are written."""

from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from itertools import chain
from time import perf_counter

import msgspec

from engine_server.router.http.forwarded_fields import ForwardedFields
from engine_server.router.http.limits import Limits
from engine_server.shared.body_buffer import Body

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
# A body of up to this size is copied behind its head, which costs less than sending two buffers.
JOINED_BYTES = 16 * 1024
IDENTITY_LINE = b"Accept-Encoding: identity\r\n"
LAST_CHUNK = b"0\r\n\r\n"
PARTS_PER_LINE = 4
PARTS_PER_KEPT = 2
# Takes what is added to a head after its end, which are trailers, and keeps nothing.
DISCARDED: deque[bytes] = deque(maxlen=0)


class Fields:
    """The header fields of one message at a time: those that the router reads, and the lines that it forwards."""

    __slots__ = ("_forwarded", "_known", "kept", "parts", "read", "repeated")

    def __init__(self, forwarded: ForwardedFields) -> None:
        self._forwarded = forwarded
        self._known = forwarded.known
        self.clear()

    def clear(self) -> None:
        """Forget the fields, so that the next message's can be added."""
        # Values by name in lower case.
        self.read: dict[bytes, bytes] = {}
        # Further values of fields in `read`.
        self.repeated: list[tuple[bytes, bytes]] = []
        # Names and values of the fields that are not forwarded.
        self.kept: list[bytes] = []
        # Of the lines to forward: name, separator, value and line end of each.
        self.parts: list[bytes] | deque[bytes] = []

    def add(self, name: bytes, value: bytes) -> None:
        """Add one field as it was received."""
        key, forwarded = self._known.get(name) or self._forwarded.treatment(name)
        if key is not None:
            if key in self.read:
                self.repeated.append((key, value))
            else:
                self.read[key] = value
        if forwarded:
            self.parts.extend((name, b": ", value, b"\r\n"))
        else:
            self.kept += name, value

    def exceed(self, limits: Limits, besides: int) -> bool:
        """Return True if the limits of a head are exceeded by the fields, which are not all of its bytes."""
        count = len(self.parts) // PARTS_PER_LINE + len(self.kept) // PARTS_PER_KEPT
        return count > limits.fields or besides + sum(map(len, chain(self.parts, self.kept))) > limits.head

    def take_forwarded(self) -> bytes:
        """Return the lines to forward, without fields that Connection names, and ignore fields that follow."""
        parts, self.parts = self.parts, DISCARDED
        if self.repeated:
            self._join_repeated()
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

    def _join_repeated(self) -> None:
        """Join the values of a repeated field by commas, which is what a list means."""
        values: dict[bytes, list[bytes]] = {}
        for key, value in self.repeated:
            values.setdefault(key, [self.read[key]]).append(value)
        self.read.update((key, b", ".join(parts)) for key, parts in values.items())


# The buffers of a request to an engine, which are sent together.
Message = Sequence[bytes | memoryview]


class PackedBody(msgspec.Struct, frozen=True):
    """The body of a request that is answered with a stream, in case that the stream has to be continued."""

    # Compressed by zlib; None if it was forgotten.
    data: bytes | None
    # The bytes of the body.
    size: int


class Request(msgspec.Struct):
    """A request with its whole body, which is packed once the answer is a stream that goes on for a while."""

    method: bytes
    target: bytes
    # The lines of its head that are forwarded.
    lines: bytes
    # The fields that the router reads, by name in lower case.
    fields: dict[bytes, bytes]
    body: Body
    # The client understands HTTP/1.1, chunked bodies included.
    http11: bool
    # The client's connection closes after the answer.
    last: bool
    # Of the log, of the engine's log, and of the answer.
    id: bytes
    # In place of `body`, which then is empty.
    packed: PackedBody | None = None
    # Time (perf_counter) of the first byte of its head.
    arrived: float = msgspec.field(default_factory=perf_counter)

    @property
    def body_size(self) -> int:
        """The bytes of the body as it was received."""
        return len(self.body) if self.packed is None else self.packed.size

    @property
    def held(self) -> int:
        """The bytes that are kept of the body."""
        return len(self.body if self.packed is None else self.packed.data or b"")

    def pack(self, data: bytes | None) -> None:
        """Replace the body by its compressed form, or forget it."""
        self.body, self.packed = b"", PackedBody(data, self.body_size)

    @property
    def path(self) -> bytes:
        """The target without its query, as it was received."""
        return self.target.partition(b"?")[0]

    def decline_encodings(self) -> None:
        """Ask engines for an answer without an encoding: the client has a head that names none."""
        lines = self.lines.splitlines(keepends=True)
        others = [line for line in lines if not line.lower().startswith(b"accept-encoding:")]
        self.lines = b"".join([*others, IDENTITY_LINE])

    def message(self, lines: bytes = b"", body: bytes | None = None) -> Message:
        """Return the buffers to send to an engine, with further lines of the head, and `body` in place of its own.

        A large body is not copied.
        """
        sent = self.body if body is None else body
        parts = (self.method, self.target, self.lines, lines, self.id, len(sent))
        head = b"%b %b HTTP/1.1\r\n%b%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % parts
        return [b"".join((head, sent))] if len(sent) <= JOINED_BYTES else [head, memoryview(sent)]


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
