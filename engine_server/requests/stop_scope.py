"""The part of an answer's text in which stop strings are matched."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol


class ScopedText(NamedTuple):
    """A piece of an answer's text."""

    text: str
    # Stop strings are matched in content. A mark is a delimiter of parts of the answer, as a whole.
    kind: Literal["content", "other", "mark"]
    # Of a mark, its text with its tokens' own texts in place of `mark_character`; None: `text`.
    plain: str | None = None


class StopScope(Protocol):
    """Divides one answer's text. It is a function of the text alone, and not of its division into calls."""

    def feed(self, text: str) -> list[ScopedText]:
        """Return the next pieces in order, which add up to all text so far but a possible beginning of a mark."""

    def end(self) -> list[ScopedText]:
        """Return the pieces that were held back; no text follows."""


# Makes the scope of one completion.
StopScopeFactory = Callable[[], StopScope]
