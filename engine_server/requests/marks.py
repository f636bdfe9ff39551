"""The characters that stand for tokens in a text: lone surrogates, which no decoded text contains.

Text with them stays within the front end's process: it can't be encoded as UTF-8.
"""

FIRST = 0xD800
# The number of surrogates.
MAX_MARKS = 2048


def mark_character(index: int) -> str:
    """Return the character of the mark with an index below MAX_MARKS."""
    if not 0 <= index < MAX_MARKS:
        raise ValueError(f"there is no mark {index}; there are {MAX_MARKS}")
    return chr(FIRST + index)
