"""The reasoning of an answer: which tokens belong to it, and a limit of their number."""

from collections import deque
from collections.abc import Sequence

import msgspec

from engine_server.requests import validation as valid


class ReasoningBudget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A limit of an answer's reasoning, which ends with its delimiter once it has so many tokens.

    tokens: number of tokens without the delimiters, of all the answer's reasoning together.
    start, end: token ids of the delimiters. inside: the prompt ends within the reasoning.

    Raises InvalidRequestError, which names the parameter.
    """

    tokens: int
    start: list[int] = []
    end: list[int]
    inside: bool = False

    def __post_init__(self) -> None:
        self.tokens = valid.integer("tokens", self.tokens, 0, valid.MAX_INT32)
        self.start = valid.tokens("start", self.start)
        self.end = valid.tokens("end", self.end)
        self.inside = valid.flag("inside", self.inside)
        if not self.end:
            valid.refuse_value("end", self.end, "`list` of length >= 1")


class ReasoningTokens:
    """Counts the tokens between two delimiters, each a sequence of tokens, without the delimiters.

    The count depends on the tokens alone and not on their division into calls.
    """

    def __init__(self, start: Sequence[int], end: Sequence[int], inside: bool) -> None:
        """inside: the prompt ends within the reasoning."""
        self._start = tuple(start)
        self._end = tuple(end)
        self.inside = inside
        # The tokens so far that belong to the reasoning, and those of a delimiter that has just begun.
        self.total = 0
        self._latest: deque[int] = deque(maxlen=max(len(start), len(end), 1))

    def copy(self) -> "ReasoningTokens":
        copy = ReasoningTokens(self._start, self._end, self.inside)
        copy.total = self.total
        copy._latest.extend(self._latest)
        return copy

    def count(self, token_ids: Sequence[int]) -> int:
        """Return how many of the next tokens belong to the reasoning, less those of the delimiter."""
        if not self._end:
            return 0
        before = self.total
        for token_id in token_ids:
            self._latest.append(token_id)
            if self.inside:
                self.total += 1
                if self._ends_with(self._end):
                    self._turn(False)
                    self.total -= len(self._end)
            elif self._start and self._ends_with(self._start):
                self._turn(True)
        return self.total - before

    def next_of_end(self) -> int:
        """Return the token that goes on with the end delimiter, of which the tokens may have the beginning."""
        begun = next(
            length for length in range(len(self._end) - 1, -1, -1) if self._ends_with(self._end[:length])
        )
        return self._end[begun]

    def _turn(self, inside: bool) -> None:
        self.inside = inside
        self._latest.clear()  # a delimiter takes no token of the other

    def _ends_with(self, delimiter: tuple[int, ...]) -> bool:
        return tuple(self._latest)[len(self._latest) - len(delimiter) :] == delimiter
