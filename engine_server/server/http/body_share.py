"""The memory that the bodies of all requests in flight share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from engine_server.shared.shares import Shares

# Of all bodies together.
MAX_BYTES = 256 << 20


class BodyShare:
    """The memory of one body, which counts for its sender and returns at the end of the context."""

    def __init__(self, shares: Shares, owner: str) -> None:
        self._shares = shares
        self._owner = owner
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shares.release(self._owner, self._num_bytes)

    def grow(self, num_bytes: int) -> bool:
        """Take more bytes; return False if the sender may not have that many."""
        if not self._shares.claim(self._owner, num_bytes):
            return False
        self._num_bytes += num_bytes
        return True
