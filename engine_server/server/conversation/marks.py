"""The tokens with which a model delimits the parts of its answers, in text and in patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from engine_server.requests.marks import FIRST, MAX_MARKS, mark_character

# Tokenizers add tokens of few letters or of spaces alone, which are no delimiters.
SHORTEST_MARK = 3
EXCLUDING_CLASS = re.compile(r"\[\^(?P<excluded>(?:\\.|[^\]\\])+)\]")
# The name of a group is no mark.
NO_GROUP = r"(?<!\(\?P)"


@dataclass(frozen=True)
class MarkTokens:
    """Marks that are one token each. In marked text each is one character, which no other text has.

    spelled: the model writes marks by other tokens too, so that their letters count as well.
    """

    texts: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    spelled: bool = False

    def marked(self, text: str) -> str:
        """Return text, in which all marks are tokens, as marked text."""
        return text if self.spelled else self._find.sub(lambda found: self._characters[found[0]], text)

    def plain(self, text: str, write: Callable[[str], str] = str) -> str:
        """Return marked text with the marks' letters, each written by `write`."""
        return self._find_character.sub(lambda found: write(self._texts[ord(found[0])]), text)

    def shown(self, text: str) -> str:
        """Return an answer's text, with its marks as characters, as the text that patterns are matched with."""
        return self.plain(text) if self.spelled else text

    def in_pattern(self, pattern: str) -> str:
        """Return a regular expression for marked text. A mark in it may be escaped."""
        if self.spelled:
            return pattern
        excluding = EXCLUDING_CLASS.sub(self._excluding_marks, pattern)
        return self._find_escaped.sub(self._escaped_character, excluding)

    def token_of(self, text: str) -> int | None:
        """Return the token that is this text, if that is a mark."""
        return dict(zip(self.texts, self.token_ids, strict=True)).get(text)

    def token_of_character(self, character: str) -> int:
        """Return the token that a character shows."""
        return self.token_ids[ord(character) - FIRST]

    def begins(self, text: str) -> bool:
        """Return True if marked text begins with a mark."""
        return bool(text) and ord(text[0]) in self._texts

    @cached_property
    def characters(self) -> frozenset[str]:
        """The characters of the marks, of which other text has none."""
        return frozenset(self._characters.values())

    @cached_property
    def _characters(self) -> dict[str, str]:
        return {text: mark_character(index) for index, text in enumerate(self.texts)}

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {ord(character): text for text, character in self._characters.items()}

    @cached_property
    def _find_character(self) -> re.Pattern[str]:
        return any_of(self._characters.values())

    @cached_property
    def _find(self) -> re.Pattern[str]:
        return any_of(re.escape(text) for text in longest_first(self.texts))

    @cached_property
    def _find_escaped(self) -> re.Pattern[str]:
        return any_of(
            NO_GROUP + "".join(rf"\\?{re.escape(character)}" for character in text)
            for text in longest_first(self.texts)
        )

    def _excluding_marks(self, found: re.Match[str]) -> str:
        """Return a class of characters that excludes the marks too that begin with a character it excludes."""
        first = found["excluded"].replace("\\", "")
        marks = [character for text, character in self._characters.items() if text[0] in first]
        return f"[^{found['excluded']}{''.join(marks)}]"

    def _escaped_character(self, found: re.Match[str]) -> str:
        return self._characters[found[0].replace("\\", "")]


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or "(?!)")


def longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


def find_marks(added_tokens: Mapping[int, str], delimiters: Iterable[str], spelled: bool) -> MarkTokens:
    """Return the added tokens that delimiters contain. Escapes in the delimiters' patterns are ignored.

    added_tokens: the texts of a tokenizer's added tokens, by id.
    """
    texts = [text.replace("\\", "") for text in delimiters]
    found = {
        token: token_id
        for token_id, token in sorted(added_tokens.items())
        if len(token) >= SHORTEST_MARK and not token.isspace() and any(token in text for text in texts)
    }
    if len(found) > MAX_MARKS:
        raise ValueError(f"the response template has {len(found)} marks; at most {MAX_MARKS} are allowed")
    return MarkTokens(tuple(found), tuple(found.values()), spelled)
