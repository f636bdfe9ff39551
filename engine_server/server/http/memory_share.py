"""The part of a shared memory that one sender's input or answer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from engine_server.shared.shares import Shares


class MemoryShare:
    """Bytes that count for their sender, and return at the end of the context."""

    def __init__(self, shares: Shares, owner: str) -> None:
        self._shares = shares
        self._owner = owner
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)

    def resize(self, num_bytes: int) -> bool:
        """Take or return bytes, up to `num_bytes` in all; return False if the sender may not have that many."""
        more = num_bytes - self.num_bytes
        if more > 0 and not self._shares.claim(self._owner, more):
            return False
        if more < 0:
            self._shares.release(self._owner, -more)
        self.num_bytes = num_bytes
        return True

    def add(self, num_bytes: int) -> None:
        """Take bytes that there are already, whatever is left for others."""
        self._shares.take(self._owner, num_bytes)
        self.num_bytes += num_bytes
