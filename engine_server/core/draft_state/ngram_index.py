"""Prompt lookup: drafts copied from where a request's own tokens have gone the same way before (Saxena, 2023)."""

from collections.abc import Iterable

TOKEN_BITS = 32


class NgramIndex:
    """The n-grams of one request's tokens, prompt and output, for each n from `shortest` to `longest`.

    An n-gram's key is its tokens' bits in one integer, so that equal keys are equal n-grams. Each n-gram is indexed
    once a token follows it, so that looking up the last n tokens finds their latest earlier occurrence. A token takes
    O(1) time and at most one entry for each n.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._tokens: list[int] = []
        # The last `longest` tokens as one integer.
        self._window = 0
        self._window_mask = (1 << TOKEN_BITS * longest) - 1
        # By n, longest first: the mask of a window's last n tokens, and the position after each n-gram.
        self._tables: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << TOKEN_BITS * n) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens, each at least 0 and less than 2^32."""
        tokens, tables, window, window_mask = self._tokens, self._tables, self._window, self._window_mask
        for token in token_ids:
            position = len(tokens)
            for n, mask, table in tables:
                if position >= n:
                    table[window & mask] = position
            tokens.append(token)
            window = (window << TOKEN_BITS | token) & window_mask
        self._window = window

    def propose(self, most: int) -> list[int]:
        """Return the `most` tokens after the latest earlier occurrence of the longest suffix that has one.

        A copy that reaches the last token continues with what it has copied, as in periodic text. If no suffix of an
        allowed length has occurred before, there are no tokens.
        """
        tokens = self._tokens
        for n, mask, table in self._tables:
            start = table.get(self._window & mask) if len(tokens) >= n else None
            if start is not None:
                copied = tokens[start : start + most]
                period = len(tokens) - start
                return copied if most <= period else [copied[i % period] for i in range(most)]
        return []
