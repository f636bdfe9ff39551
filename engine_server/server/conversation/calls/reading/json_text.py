"""JSON that arrives in pieces."""

import json
import re

import msgspec

WHITESPACE = " \t\r\n"
# The characters in a string that end it or that JSON wants escaped.
IN_STRING = re.compile(r'["\\\x00-\x1f]')
OUTSIDE_STRING = re.compile(r'["{}\[\]]')
END_OF_SCALAR = re.compile(r"[,}\]\s]")


def escape(text: str) -> str:
    """Return text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class JsonValue:
    """One JSON value, passed on as it arrives; it finds the value's end and leaves the check of the rest to others.

    Control characters in strings, which models write and JSON forbids, are escaped.
    """

    def __init__(self) -> None:
        self.ended = False
        # The value's first character; "" before it.
        self.first = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        """Return the value's next piece in `text` from `start` on, and the place after it."""
        place, pieces = start, []
        if not self.first:
            while place < len(text) and text[place] in WHITESPACE:
                place += 1
            if place == len(text):
                return "", place
            self.first = text[place]
        while place < len(text) and not self.ended:
            if self._in_string:
                piece, place = self._string(text, place)
            elif self.first in '{["':
                piece, place = self._structure(text, place)
            else:
                match = END_OF_SCALAR.search(text, place)
                end = match.start() if match else len(text)
                piece, place, self.ended = text[place:end], end, match is not None
            pieces.append(piece)
        return "".join(pieces), place

    def _string(self, text: str, place: int) -> tuple[str, int]:
        if self._escaped:
            self._escaped = False
            return text[place], place + 1
        match = IN_STRING.search(text, place)
        if match is None:
            return text[place:], len(text)
        end, found = match.end(), match.group()
        if found == '"':
            self._in_string = False
            self.ended = self._depth == 0
        elif found == "\\":
            self._escaped = True
        else:
            return text[place : end - 1] + escape(found), end
        return text[place:end], end

    def _structure(self, text: str, place: int) -> tuple[str, int]:
        match = OUTSIDE_STRING.search(text, place)
        if match is None:
            return text[place:], len(text)
        found = match.group()
        if found == '"':
            self._in_string = True
        else:
            self._depth += 1 if found in "{[" else -1
            self.ended = self._depth == 0
        return text[place : match.end()], match.end()


def is_json_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])  # numbers may be too large for a float
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def to_json(value: object) -> str:
    """Return a value as JSON; a string is JSON already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
