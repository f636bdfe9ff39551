"""Requests that a client sends before it has the answers to earlier ones: few are parsed ahead."""

# No more is parsed while this many requests wait on a connection.
MAX_WAITING = 8
# Parsed at a time, unless more is known to be the body of one request. It may hold some 200 of the shortest requests.
SLICE_BYTES = 4096


class Unparsed:
    """Bytes that arrived on a connection and are not parsed yet."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = memoryview(b"")

    def __len__(self) -> int:
        return len(self.rest)

    def add(self, data: bytes) -> None:
        """Append bytes that arrived."""
        self.rest = memoryview(b"".join((self.rest, data)) if self.rest else data)

    def take(self, body: int = 0) -> memoryview:
        """Remove and return the next slice; the next `body` bytes belong to the body of one request."""
        size = max(SLICE_BYTES, body)
        piece = self.rest[:size]
        if size < len(self.rest):
            self.rest = self.rest[size:]
        else:
            self.clear()  # an empty view would keep all bytes
        return piece

    def clear(self) -> None:
        """Forget the bytes."""
        self.rest = memoryview(b"")
