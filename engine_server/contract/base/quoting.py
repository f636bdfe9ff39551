"""Quotation of a client's input in error messages, which must stay short whatever the input is."""

import reprlib

# In characters.
MAX_QUOTE = 200
ELLIPSIS = "..."


def shorten(text: str, limit: int = MAX_QUOTE) -> str:
    """Return `text`, or its beginning if it has more than `limit` characters."""
    return text if len(text) <= limit else text[: limit - len(ELLIPSIS)] + ELLIPSIS


def quote(value: object) -> str:
    """Return the beginning of a value's repr, without building the whole of a large one."""
    return shorten(_REPR.repr(value))


_REPR = reprlib.Repr()
_REPR.maxstring = MAX_QUOTE
_REPR.maxlevel = 3
