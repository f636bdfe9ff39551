"""Literals of Python that arrive in pieces, as JSON."""

from __future__ import annotations

import re

from engine_server.server.conversation.calls.json_text import escape

WORDS = {"True": "true", "False": "false", "None": "null"}
WORD = re.compile(r"\w+")
# Escapes that Python and JSON write alike.
SHARED_ESCAPES = '\\"/bfnrtu'
# A longer word is no constant.
MAX_WORD = 64


class PythonValue:
    """One literal, or the JSON that stands in its place: it ends before a comma or a bracket that it doesn't open."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        # The quote that ends the string in which the text is.
        self._quote = ""
        self._escaped = False
        self._word = ""

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return the JSON of the literal's next piece in `text` from `start` on, and the place after it."""
        place, pieces = start, []
        while place < len(text) and not self.ended:
            pieces.append(self._in_string(text[place]) if self._quote else self._outside(text[place]))
            place += not self.ended
        return "".join(pieces), place

    def end(self) -> str:
        """Return what was held back; no text follows."""
        word, self._word = self._word, ""
        return WORDS.get(word, word)

    def _in_string(self, character: str) -> str:
        if self._escaped:
            self._escaped = False
            if character in SHARED_ESCAPES:
                return "\\" + character
            return "'" if character == "'" else "\\\\" + escape(character)
        if character == "\\":
            self._escaped = True
            return ""
        if character == self._quote:
            self._quote = ""
            return '"'
        return escape(character)

    def _outside(self, character: str) -> str:
        if WORD.fullmatch(character) and len(self._word) < MAX_WORD:
            self._word += character
            return ""
        word = self.end()
        if character in "'\"":
            self._quote = character
            return word + '"'
        if character in "[{(":
            self._depth += 1
        elif character in "]})" or character == ",":
            if self._depth == 0:
                self.ended = True
                return word
            self._depth -= character != ","
        return word + character


def python_as_json(text: str) -> str:
    """Return the JSON of a literal of Python. It is no JSON if the text is none."""
    value = PythonValue()
    return value.feed(text)[0] + value.end()
