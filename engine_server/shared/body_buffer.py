"""The memory of a body that arrives in pieces. A large one is neither moved nor copied while it grows."""

import sys
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

# A whole body.
Body = bytes | bytearray | mmap
# Of a body that is moved when it grows: to move 30 MB takes 20 ms, while which no other thread runs.
MOVED_BYTES = 1 << 20
# Other systems move every body.
CUTS_MAPPINGS = sys.platform == "linux"


class BodyBuffer:
    """The pieces of a body so far, one after another."""

    __slots__ = ("_content", "_most", "_size")

    def __init__(self, most: int) -> None:
        """most: the bytes that the body may have, which take no memory until they arrive."""
        self._most = most
        self._content: bytearray | mmap = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: bytes) -> None:
        """Append a piece, within the limit."""
        self._size += len(piece)
        content = self._content
        if isinstance(content, mmap):
            content.write(piece)
        elif self._size <= MOVED_BYTES or not CUTS_MAPPINGS:
            content += piece
        else:
            self._content = mmap(-1, self._most, flags=MAP_PRIVATE | MAP_ANONYMOUS)
            self._content.write(content)
            self._content.write(piece)

    def whole(self) -> bytearray | mmap:
        """Return the body, to which no more is added."""
        if isinstance(self._content, mmap):
            self._content.resize(self._size)
        return self._content


def contiguous(body: Body) -> bytes | bytearray:
    """Return the bytes of a body as an object with the methods of bytes."""
    return bytes(body) if isinstance(body, mmap) else body
