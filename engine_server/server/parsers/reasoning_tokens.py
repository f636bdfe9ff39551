"""The number of an answer's tokens that belong to its reasoning."""

from collections import deque
from collections.abc import Sequence


class ReasoningTokens:
    """Counts the tokens between two delimiters, each a sequence of tokens, without the delimiters.

    The count depends on the tokens alone and not on their division into calls.
    """

    def __init__(self, start: Sequence[int], end: Sequence[int], inside: bool) -> None:
        """inside: the prompt ends within the reasoning."""
        self._start = tuple(start)
        self._end = tuple(end)
        self._inside = inside
        self._latest: deque[int] = deque(maxlen=max(len(start), len(end), 1))

    def count(self, token_ids: Sequence[int]) -> int:
        """Return how many of the next tokens belong to the reasoning, less those of the delimiter."""
        if not self._end:
            return 0
        count = 0
        for token_id in token_ids:
            self._latest.append(token_id)
            if self._inside:
                count += 1
                if self._ends_with(self._end):
                    self._inside = False
                    count -= len(self._end)
            elif self._start and self._ends_with(self._start):
                self._inside = True
        return count

    def _ends_with(self, delimiter: tuple[int, ...]) -> bool:
        return tuple(self._latest)[-len(delimiter) :] == delimiter
