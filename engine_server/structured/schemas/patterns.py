"""Patterns of strings: which ones a grammar can follow, and how many states they take.

Patterns are in ECMAScript's dialect, the grammar's in that of Rust's regex crate without look-around. Those in which
both agree are enforced.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

# Next element of a pattern; any other character stands for itself.
ELEMENT = re.compile(
    r"""
    (?P<escape>\\(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[pP]\{[A-Za-z0-9_=]+\}|.))
    |(?P<class>\[\^?(?:\\.|[^\]\\])*\])
    |(?P<open>\((?:\?:|\?P?<[A-Za-z_]\w*>)?(?!\?))
    |(?P<quantifier>(?:[*+?]|\{(?P<least>\d+)(?P<range>,(?P<most>\d*))?\})\??)
    |(?P<look>\(\?<?[=!])
    |(?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)
# Escapes that mean the same in both dialects, besides those of punctuation.
ESCAPES = frozenset("dDwWsStnrfvuxpP")
SURROGATE = re.compile(r"\\u(?:\{0*)?[dD][89a-fA-F]")
# What a character class has of one dialect alone: empty or nested ones, set operations, ranges with a class.
FOREIGN_CLASS = re.compile(r"\[\^?\]|.\[|&&|--|~~|\\[bBc0-9]|\\[dDwWsS]-[^\]]|[^\[^\\]-\\[dDwWsS]", re.DOTALL)
# States of the lexer for a character: of a class of ASCII alone, and of any other, with UTF-8's parts and escapes.
ASCII_STATES, STATES = 2, 15


class Pattern(NamedTuple):
    """What is known of a pattern."""

    # Why it can't be enforced; None if it can.
    reason: str | None = None
    # True if it is none in any dialect.
    broken: bool = False
    # The most states that it needs, about.
    states: int = 0
    # The alternatives as (anchored at the start, text, anchored at the end).
    alternatives: tuple[tuple[bool, str, bool], ...] = ()


class UnsupportedError(Exception):
    """A pattern that can't be enforced."""


class BrokenError(Exception):
    """A text that is no pattern."""


@dataclass(slots=True)
class Level:
    """A group that is open, or the pattern as a whole."""

    states: int = 0
    # Of the latest element; None where nothing can be repeated.
    last: int | None = None


@dataclass(slots=True)
class Alternatives:
    """The alternatives of the whole pattern, as they are read."""

    done: list[tuple[bool, str, bool]] = field(default_factory=list)
    first: int = 0
    starts: bool = False
    ends: bool = False

    def end(self, pattern: str, position: int) -> None:
        """End an alternative at a position."""
        self.done.append((self.starts, pattern[self.first : position - self.ends], self.ends))
        self.first, self.starts, self.ends = position + 1, False, False


@lru_cache(256)
def read_pattern(pattern: str) -> Pattern:
    """Return what is known of a pattern, in linear time."""
    try:
        return scan(pattern)
    except UnsupportedError as error:
        return Pattern(str(error))
    except BrokenError as error:
        return Pattern(str(error), broken=True)


def scan(pattern: str) -> Pattern:
    """Read a pattern element by element. Raises UnsupportedError and BrokenError."""
    levels, whole = [Level()], Alternatives()
    for found in ELEMENT.finditer(pattern):
        text = found[0]
        if whole.ends and len(levels) == 1 and text != "|":
            raise UnsupportedError("anchor")
        match found.lastgroup:
            case "escape":
                states: int | None = escape_states(text)
            case "class":
                states = class_states(text)
            case "open":
                levels.append(Level())
                continue
            case "quantifier":
                repeat(levels[-1], found)
                continue
            case "look":
                raise UnsupportedError("look-around")
            case _:
                states = read_character(found, levels, whole, pattern)
        levels[-1].last = states
        levels[-1].states += states or 0
    if len(levels) > 1:
        raise BrokenError("unclosed group")
    whole.end(pattern, len(pattern))
    return Pattern(states=levels[0].states, alternatives=tuple(whole.done))


def repeat(level: Level, quantifier: re.Match[str]) -> None:
    """Multiply the states of a level's latest element."""
    if level.last is None:
        raise UnsupportedError("brace") if quantifier[0][0] == "{" else BrokenError("nothing to repeat")
    count = int(quantifier["most"] or quantifier["least"] or 1)
    level.states += level.last * (count - 1)
    level.last = None


def read_character(
    found: re.Match[str], levels: list[Level], whole: Alternatives, pattern: str
) -> int | None:
    """Return the states of a character that is no escape, class or quantifier; None for one that matches nothing."""
    match text := found[0]:
        case ")":
            if len(levels) == 1:
                raise BrokenError("unopened group")
            return levels.pop().states
        case "|":
            if len(levels) == 1:
                whole.end(pattern, found.start())
            return None
        case "^":
            if len(levels) > 1 or whole.starts or found.start() != whole.first:
                raise UnsupportedError("anchor")
            whole.starts, whole.first = True, found.end()
            return None
        case "$":
            if len(levels) > 1:
                raise UnsupportedError("anchor")
            whole.ends = True
            return None
        case "[":
            raise BrokenError("unclosed character class")
        case "\\":
            raise BrokenError("a backslash at the end")
        case "(":
            raise UnsupportedError("group")
        case "{":
            raise UnsupportedError("brace")
        case ".":
            return STATES
        case _:
            return 1 if text.isascii() else 3


def escape_states(text: str) -> int:
    """Return the states of an escape."""
    kind = text[1]
    if kind in "bB<>":
        raise UnsupportedError("word boundary")
    if kind in "123456789k":
        raise UnsupportedError("back-reference")
    if (kind.isalnum() and kind not in ESCAPES) or not kind.isascii() or SURROGATE.match(text):
        raise UnsupportedError("escape")
    if kind in "uxpP" and len(text) == 2:
        raise UnsupportedError("escape")
    return STATES if kind in "DWSspPux" else ASCII_STATES


def class_states(text: str) -> int:
    """Return the states of a character class."""
    if FOREIGN_CLASS.search(text):
        raise UnsupportedError("character class")
    for escape in re.finditer(
        r"\\(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[pP]\{\w+\}|.)", text
    ):
        escape_states(escape[0])
    narrow = text.isascii() and text[1] != "^" and not re.search(r"\\[DWSspPux]", text)
    return ASCII_STATES if narrow else STATES
