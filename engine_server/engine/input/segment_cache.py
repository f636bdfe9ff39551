"""The tokens of segments of texts, which are kept in bounded memory."""

from __future__ import annotations

import hashlib
import sys
from threading import Lock
from typing import NamedTuple

import msgspec

from engine_server.contract.base.bounded_map import BoundedMap

# Bytes that an entry takes in the index, beside its key and its tokens.
ENTRY_OVERHEAD = 160
# The largest part of the memory that one segment may take.
MOST_OF_ONE = 1 / 8


class Sharers(NamedTuple):
    """The prompts that share what is cached of them."""

    # The caller's.
    scope: str | None = None
    # The prompt's own.
    salt: str | None = None


class SegmentKey(NamedTuple):
    """What the tokens of a segment depend on, and who may find them."""

    # A digest of the sharers, whose salt may be long, and of the tokenizer's name.
    owner: bytes
    segment: str


class SegmentCache:
    """Token ids by segment; those that were used the longest ago give way. Any thread may use it.

    `limit` is in bytes, and counts all that Python allocates.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries = BoundedMap[SegmentKey, bytes](limit, size_of)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used(self) -> int:
        return self._entries.used

    def find(self, key: SegmentKey) -> bytes | None:
        """Return the packed token ids of a segment (see `token_bytes`); None if they are not known."""
        with self._lock:
            return self._entries.find(key)

    def keep(self, key: SegmentKey, ids: bytes) -> None:
        """Add a segment, unless it is so long that many others would give way to it."""
        if size_of(key, ids) > self.limit * MOST_OF_ONE:
            return
        with self._lock:
            self._entries.keep(key, ids)


def owner_of(tokenizer: str, sharers: Sharers) -> bytes:
    """Return the part of a key that says which tokenizer made the tokens, and who may find them."""
    return hashlib.blake2b(msgspec.msgpack.encode((tokenizer, *sharers)), digest_size=16).digest()


def size_of(key: SegmentKey, ids: bytes) -> int:
    """Return the number of bytes that an entry takes."""
    return ENTRY_OVERHEAD + sum(map(sys.getsizeof, (key, *key, ids)))
