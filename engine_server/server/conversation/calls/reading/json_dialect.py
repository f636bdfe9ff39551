"""JSON as some models write it: bare keys, and strings in delimiters of their own."""

from __future__ import annotations

from collections.abc import Sequence

from engine_server.server.conversation.calls.reading.events import CallEvent, CallReader
from engine_server.server.conversation.calls.reading.json_text import WHITESPACE, escape

# Characters of JSON that are in no bare key.
STRUCTURE = WHITESPACE + '{}[]:,"'
# A longer word is no key.
MAX_KEY_CHARACTERS = 256


class DialectReader:
    """Reads calls in a dialect of JSON: the strict JSON goes to another reader."""

    def __init__(self, reader: CallReader, delimiters: Sequence[Sequence[str]], bare_keys: bool) -> None:
        self._reader = reader
        self._dialect = Dialect(delimiters, bare_keys)

    def feed(self, text: str) -> list[CallEvent]:
        return self._reader.feed(self._dialect.feed(text))

    def close(self, terminated: bool) -> list[CallEvent]:
        return self._reader.feed(self._dialect.end()) + self._reader.close(terminated)


class Dialect:
    """Translates a dialect to JSON, piece by piece.

    delimiters: pairs of the strings that open and close a string, besides JSON's quotes.
    """

    def __init__(self, delimiters: Sequence[Sequence[str]], bare_keys: bool) -> None:
        self._opening = {pair[0]: pair[1] for pair in delimiters}
        self._bare_keys = bare_keys
        self._not_in_key = {*STRUCTURE, *(opening[0] for opening in self._opening)}
        # The end of the text so far, which may be the beginning of a delimiter.
        self._held = ""
        # The delimiter that ends the string in which the text is.
        self._closing: str | None = None
        self._escaped = False
        # The text is at a place where a key may be.
        self._at_key = False
        # The word there.
        self._word = ""

    def feed(self, text: str) -> str:
        text, self._held = self._held + text, ""
        place, pieces = 0, []
        while place < len(text):
            read = self._outside if self._closing is None else self._inside
            piece, place = read(text, place)
            pieces.append(piece)
            if self._held:
                break
        return "".join(pieces)

    def end(self) -> str:
        """Return what was held back; no text follows."""
        text, self._held = self._word + self._held, ""
        return text if self._closing in (None, '"') else escape(text)

    def _inside(self, text: str, place: int) -> tuple[str, int]:
        assert self._closing is not None
        if self._closing == '"':
            return self._standard_string(text, place)
        end = text.find(self._closing, place)
        if end >= 0:
            after = end + len(self._closing)
            self._closing = None
            return escape(text[place:end]) + '"', after
        end = len(text) - partial_suffix(text, self._closing, place)
        self._held = text[end:]
        return escape(text[place:end]), len(text)

    def _standard_string(self, text: str, place: int) -> tuple[str, int]:
        for end in range(place, len(text)):
            if self._escaped:
                self._escaped = False
            elif text[end] == "\\":
                self._escaped = True
            elif text[end] == '"':
                self._closing = None
                return text[place : end + 1], end + 1
        return text[place:], len(text)

    def _outside(self, text: str, place: int) -> tuple[str, int]:
        character = text[place]
        if self._word or self._at_key:
            if character not in self._not_in_key and len(self._word) < MAX_KEY_CHARACTERS:
                self._word += character
                return "", place + 1
            if self._word:
                word, self._word, self._at_key = self._word, "", False
                return (f'"{word}"' if character == ":" else word), place
        for opening, closing in self._opening.items():
            if text.startswith(opening, place):
                self._closing, self._at_key = closing, False
                return '"', place + len(opening)
            if opening.startswith(text[place:]):
                self._held = text[place:]
                return "", len(text)
        if character == '"':
            self._closing, self._at_key = '"', False
        elif character in "{,":
            self._at_key = self._bare_keys
        elif character not in WHITESPACE:
            self._at_key = False
        return character, place + 1


def partial_suffix(text: str, delimiter: str, start: int) -> int:
    """Return the length of the longest end of text[start:] that is a beginning of `delimiter`."""
    longest = min(len(delimiter) - 1, len(text) - start)
    return next((length for length in range(longest, 0, -1) if text.endswith(delimiter[:length])), 0)
