"""Rendered text as pieces that a cut must not divide: marks, numbers, and single characters."""

from __future__ import annotations

import re
from collections.abc import Callable

MARK = r"<[^<>\s][^<>\n]{0,126}>|\[/?[A-Z][A-Z_ ]{1,62}\]|\[\|[^\[\]\n]{1,62}\|\]"
PIECE = re.compile(rf"{MARK}|[0-9]+|.", re.DOTALL)
FIND_MARK = re.compile(MARK)


def pieces(text: str) -> list[str]:
    """Return the pieces of a text, which join to it."""
    return PIECE.findall(text)


def marks_in(text: str) -> list[str]:
    """Return the marks of a text, in order."""
    return FIND_MARK.findall(text)


def common_start(first: str, second: str) -> str:
    """Return the longest common beginning of two texts."""
    length = 0
    for one, other in zip(pieces(first), pieces(second), strict=False):
        if one != other:
            break
        length += len(one)
    return first[:length]


def common_end(first: str, second: str, equal: Callable[[str, str], bool] = str.__eq__) -> tuple[str, str]:
    """Return the longest ends of two texts whose pieces are equal."""
    ends: tuple[int, int] = (len(first), len(second))
    for one, other in zip(reversed(pieces(first)), reversed(pieces(second)), strict=False):
        if not equal(one, other):
            break
        ends = (ends[0] - len(one), ends[1] - len(other))
    return first[ends[0] :], second[ends[1] :]
