"""The size of the pages in which a list of Kubernetes is read: bounded in bytes.

Whoever may create objects chooses their sizes, and a page is read as a whole.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

# What a page has, about; and what is read of one of several objects before fewer are asked for.
PAGE_BYTES = 4 << 20
LARGEST_PAGE_BYTES = 16 << 20


@dataclass(slots=True)
class PageSize:
    """The number of objects of one kind to ask for: as many as their sizes and the API server's speed allow."""

    # At most.
    most: int
    # On the next page.
    limit: int

    @property
    def largest(self) -> int | None:
        """The bytes of an answer that are read; None: of a page with one object all are."""
        return LARGEST_PAGE_BYTES if self.limit > 1 else None

    def answered(self, num_objects: int, num_bytes: int) -> None:
        """Adapt the next page to one that was read."""
        fitting = PAGE_BYTES * num_objects // num_bytes if num_objects else self.most
        self.limit = max(1, min(self.most, 2 * self.limit, fitting))

    def refused(self) -> bool:
        """Record that a page came too slowly or was too large; return True if a smaller one may do."""
        before, self.limit = self.limit, max(1, self.limit // 2)
        return before > 1


class AnswerTooLargeError(Exception):
    """An answer has more bytes than are read of it."""


async def read_bounded(pieces: AsyncIterator[bytes], largest: int | None) -> bytes:
    """Return the body of an answer. Raises AnswerTooLargeError for more than `largest` bytes; None: any number."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if largest is not None and len(body) > largest:
            raise AnswerTooLargeError(f"an answer has more than {largest} bytes")
    return bytes(body)
