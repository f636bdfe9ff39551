"""Marks in place of media tokens that others than the chat template wrote."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

# The digits of a random number, and of the token's index after it.
SENTINEL_DIGITS = 39
INDEX_DIGITS = 5


class MediaMarks:
    """Marks for the strings of a model's media tokens in texts that a chat template is given.

    A mark is a number that nobody can guess, so that no text has one, and that templates print as it is. In a rendered
    text the strings that are still there are the template's own.
    """

    def __init__(self, media_tokens: Sequence[str]) -> None:
        # The longer one first where one begins with another.
        self._tokens = sorted(media_tokens, key=len, reverse=True)
        self._sentinel = f"{secrets.randbits(128):0{SENTINEL_DIGITS}d}"
        self._indexes = {token: index for index, token in enumerate(self._tokens)}
        self._found = re.compile("|".join(map(re.escape, self._tokens)) or r"(?!)")
        self._mark = re.compile(f"{self._sentinel}([0-9]{{{INDEX_DIGITS}}})")

    def text(self, text: str) -> str:
        """Return a text with marks."""
        return self._found.sub(
            lambda found: f"{self._sentinel}{self._indexes[found[0]]:0{INDEX_DIGITS}d}", text
        )

    def value(self, value: Any) -> Any:
        """Return a value of JSON's types with marks in its strings, names included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(name): self.value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def restored(self, text: str) -> str:
        """Return a text with the strings in place of their marks."""
        return self._mark.sub(lambda mark: self._tokens[int(mark[1])], text)

    def pieces(self, text: str) -> list[str]:
        """Return a text in pieces: at odd places the marked strings, at even ones what is around them."""
        pieces = self._mark.split(text)
        pieces[1::2] = [self._tokens[int(index)] for index in pieces[1::2]]
        return pieces
