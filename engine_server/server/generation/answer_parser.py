"""The seam between generated text and the parts of an answer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine_server.server.generation.events import Part, Text, TextKind


class AnswerParser(Protocol):
    """Splits the text of one choice into parts.

    The parts joined depend on the text alone and not on its division into calls, so that a continued stream and an
    answer that is not streamed equal a streamed one.
    """

    def feed(self, text: str) -> list[Part]:
        """Return the parts that `text`, which follows the text of earlier calls, completes."""

    @property
    def plain_kind(self) -> TextKind | None:
        """The kind of part to which plain text is added next; None if that depends on the text."""

    def passes(self, text: str) -> bool:
        """Read text that is a part of `plain_kind` as it is, and return True; read nothing of other text."""

    def end(self) -> list[Part]:
        """Return the parts that were held back; no text follows."""

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return how many of the choice's next tokens belong to the reasoning."""


# Makes the parser of the choice with this index.
ParserFactory = Callable[[int], AnswerParser]


class PlainText:
    """The parser of an answer without reasoning and tool calls."""

    plain_kind = Text

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def passes(self, text: str) -> bool:
        return True

    def end(self) -> list[Part]:
        return []

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        return 0


def plain_text(choice: int) -> AnswerParser:
    """Return a parser for which all text is the answer proper."""
    return PlainText()
