"""JSON that is nested more deeply than parsers which recurse can follow.

An API server stores 10,000 levels, and Python's parsers fail at about 1,000, or 10,000, by its version.
"""

import re
from collections.abc import Callable, Mapping
from itertools import accumulate, chain
from typing import Any, TypeVar

T = TypeVar("T")

# No object of the cluster has so many levels for a purpose.
MOST_LEVELS = 64
# Of a document, such as a list of objects. An object that has too many still has too many afterwards.
KEPT_LEVELS = 128
# Strings, whose brackets do not count, and brackets.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
TOKEN = re.compile(STRING.pattern + rb"|[\[\]{}]")
OPENING, CLOSING = b"[{", b"]}"
# Brackets as steps into and out of a level, as signed bytes; all other bytes are left out.
STEPS = bytes.maketrans(OPENING + CLOSING, b"\x01\x01\xff\xff")
NO_BRACKETS = bytes(set(range(256)) - {*OPENING, *CLOSING})


def decode_shallow(decoder: Callable[[bytes], T], content: bytes) -> T:
    """Return what `decoder` finds. In a document that it cannot follow, values below KEPT_LEVELS count as null."""
    try:
        return decoder(content)
    except RecursionError:
        return decoder(shallow(content))


def shallow(content: bytes) -> bytes:
    """Return a JSON document with null in place of each object and array that lies below KEPT_LEVELS others."""
    if count_levels(content) <= KEPT_LEVELS:
        return content
    kept: list[bytes] = []
    copied = depth = 0
    for token in TOKEN.finditer(content):
        start = token.start()
        if content[start] in OPENING:
            if depth == KEPT_LEVELS:
                kept += (content[copied:start], b"null")
            depth += 1
        elif content[start] in CLOSING:
            depth -= 1
            if depth == KEPT_LEVELS:
                copied = start + 1
    if depth <= KEPT_LEVELS:
        kept.append(content[copied:])
    return b"".join(kept)


def count_levels(content: bytes) -> int:
    """Return an upper bound of a JSON document's levels, which is exact above KEPT_LEVELS."""
    opened = content.count(b"{") + content.count(b"[")
    if opened <= KEPT_LEVELS:
        return opened
    steps = memoryview(STRING.sub(b"", content).translate(STEPS, NO_BRACKETS))
    return max(accumulate(steps.cast("b")), default=0)


def has_more_levels(value: object, levels: int) -> bool:
    """Return True for a decoded value in which more than `levels` objects and arrays contain each other."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [each for each in layer if isinstance(each, Mapping | list)]
        if not layer:
            return False
        layer = list(chain.from_iterable(e.values() if isinstance(e, Mapping) else e for e in layer))
    return True
