"""Embeddings in a prompt."""

from typing import NamedTuple

from torch import Tensor


class Span(NamedTuple):
    """Embeddings in place of those of a request's consecutive tokens."""

    # Index of the first of the tokens.
    start: int
    # [tokens, hidden].
    rows: Tensor
    # Identifies the rows: spans with the same digest have the same rows.
    digest: str

    @property
    def end(self) -> int:
        """Index of the first token after them."""
        return self.start + len(self.rows)

    def overlaps(self, start: int, end: int) -> bool:
        """Return True if any of its tokens is among those from `start` to before `end`."""
        return self.start < end and start < self.end
