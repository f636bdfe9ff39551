"""Embeddings in a prompt."""

from typing import NamedTuple, Self

from torch import Tensor


class Span(NamedTuple):
    """Embeddings in place of those of a request's consecutive tokens."""

    # Index of the first of the tokens.
    start: int
    # Their number.
    length: int
    # Identifies all the rows from which they are taken: those with the same digest are the same.
    digest: str
    # [length, hidden]; None: every rank has those of the picture with this digest.
    rows: Tensor | None = None
    # Index of the first token's row among the picture's.
    first: int = 0

    @classmethod
    def of(cls, start: int, rows: Tensor, digest: str) -> Self:
        """Return a span of all the rows of a digest."""
        return cls(start, len(rows), digest, rows)

    @property
    def end(self) -> int:
        """Index of the first token after them."""
        return self.start + self.length

    def overlaps(self, start: int, end: int) -> bool:
        """Return True if any of its tokens is among those from `start` to before `end`."""
        return self.start < end and start < self.end

    def within(self, start: int, end: int) -> Self:
        """Return the part of it, which overlaps, from token `start` to before `end`."""
        first, last = max(self.start, start), min(self.end, end)
        skipped = first - self.start
        rows = None if self.rows is None else self.rows[skipped : last - self.start]
        return self._replace(start=first, length=last - first, rows=rows, first=self.first + skipped)
