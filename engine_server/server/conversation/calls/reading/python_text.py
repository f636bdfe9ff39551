"""Literals of Python that arrive in pieces, as JSON."""

from __future__ import annotations

import json
import re
import sys

from engine_server.server.conversation.calls.reading.json_text import WHITESPACE, escape

WORDS = {"True": "true", "False": "false", "None": "null"}
IN_WORD = re.compile(r"[\w.+-]")
# A longer word is neither a constant nor a number that JSON writes otherwise.
MAX_WORD = 64
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Brackets of Python as JSON; a tuple is a list.
BRACKETS = {"[": "[", "(": "[", "{": "{", "]": "]", ")": "]", "}": "}"}
# The backslash and what follows it: an escape that may go on, and one that is complete.
BEGUN_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7}|[0-7]{1,2})?")
ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|[0-7]{3}|[^xU0-7])", re.DOTALL)
CODE = re.compile(r"\\(?:[xU](?P<hex>[0-9a-fA-F]{2}|[0-9a-fA-F]{8})|(?P<octal>[0-7]{1,3}))")
# Escapes that Python and JSON write alike, and those of Python alone.
SHARED_ESCAPES = '\\"/bfnrtu'
OTHER_ESCAPES = {"'": "'", "\n": "", "a": "\a", "v": "\v"}


class PythonValue:
    """One literal, or the JSON that stands in its place: it ends before a comma or a bracket that it doesn't open."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        # The string in which the text is.
        self._string: PythonString | None = None
        self._word = ""
        self._long_word = False
        # A comma and the white space after it. JSON has none before a closing bracket.
        self._comma = ""

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return the JSON of the literal's next piece in `text` from `start` on, and the place after it."""
        place, pieces = start, []
        while place < len(text) and not self.ended:
            if self._string is not None:
                piece, place = self._string.feed(text, place)
                self._string = None if self._string.ended else self._string
            else:
                piece = self._outside(text[place])
                place += not self.ended
            pieces.append(piece)
        return "".join(pieces), place

    def end(self) -> str:
        """Return what was held back; no text follows."""
        return self._end_of_word() + self._take_comma()

    def _outside(self, character: str) -> str:
        if IN_WORD.fullmatch(character):
            return self._take_comma() + self._in_word(character)
        word = self._end_of_word()
        if character in "]})":
            self.ended = self._depth == 0
            self._depth -= 1
            self._comma = ""
            return word if self.ended else word + BRACKETS[character]
        if character == ",":
            self.ended = self._depth == 0
            comma, self._comma = self._comma, "" if self.ended else character
            return word + comma
        if self._comma and character in WHITESPACE:
            self._comma += character
            return word
        return word + self._take_comma() + self._begun(character)

    def _begun(self, character: str) -> str:
        if character in "'\"":
            self._string = PythonString(character)
            return '"'
        if character in "[{(":
            self._depth += 1
            return BRACKETS[character]
        return character

    def _in_word(self, character: str) -> str:
        if self._long_word:
            return character
        self._word += character
        if len(self._word) < MAX_WORD:
            return ""
        word, self._word, self._long_word = self._word, "", True
        return word

    def _end_of_word(self) -> str:
        word, self._word, self._long_word = self._word, "", False
        return word_as_json(word)

    def _take_comma(self) -> str:
        comma, self._comma = self._comma, ""
        return comma


class PythonString:
    """The inside of a string, and the quote that ends it."""

    def __init__(self, quote: str) -> None:
        self.ended = False
        self._special = re.compile(rf"[\\{quote}]")
        # A backslash and what follows it, until the escape is complete.
        self._escape = ""

    def feed(self, text: str, start: int) -> tuple[str, int]:
        """Return the JSON of the string's next piece in `text` from `start` on, and the place after it."""
        if self._escape:
            return self._continue_escape(text, start)
        found = self._special.search(text, start)
        if found is None:
            return escape(text[start:]), len(text)
        before = escape(text[start : found.start()])
        if found[0] == "\\":
            self._escape = found[0]
            return before, found.end()
        self.ended = True
        return before + '"', found.end()

    def _continue_escape(self, text: str, place: int) -> tuple[str, int]:
        longer = self._escape + text[place]
        if BEGUN_ESCAPE.fullmatch(longer):
            self._escape = longer
            return "", place + 1
        complete = ESCAPE.fullmatch(longer) is not None
        written = longer if complete else self._escape
        self._escape = ""
        return escape_as_json(written), place + complete


def escape_as_json(written: str) -> str:
    """Return what JSON writes for an escape of Python; one that Python doesn't have stands for itself."""
    kind = written[1:2]
    if kind in SHARED_ESCAPES:
        return written
    if kind in OTHER_ESCAPES:
        return escape(OTHER_ESCAPES[kind])
    code = CODE.fullmatch(written)
    number = -1 if code is None else int(code["hex"], 16) if code["hex"] else int(code["octal"], 8)
    return json.dumps(chr(number))[1:-1] if 0 <= number <= sys.maxunicode else escape(written)


def word_as_json(word: str) -> str:
    """Return the JSON of a constant or a number of Python; another word as it is."""
    if word in WORDS:
        return WORDS[word]
    if JSON_NUMBER.fullmatch(word):
        return word
    for number in (lambda: int(word, 0), lambda: float(word)):
        try:
            return json.dumps(number(), allow_nan=False)
        except ValueError:
            continue
    return word


def python_as_json(text: str) -> str:
    """Return the JSON of a literal of Python. It is no JSON if the text is none."""
    value = PythonValue()
    read, place = value.feed(text)
    return read + value.end() + text[place:]
