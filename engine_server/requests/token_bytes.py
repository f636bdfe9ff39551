"""Token ids as bytes, in which a long prompt crosses the process boundary in no time."""

from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack(token_ids: Iterable[int]) -> bytes:
    """Return token ids as bytes, 4 for each in the machine's order. Raises OverflowError for one beyond 32 bits."""
    return array("I", token_ids).tobytes()


def unpack(packed: bytes) -> list[int]:
    """Return the token ids that `pack` was given. Raises ValueError for bytes that are no whole number of ids."""
    token_ids = array("I")
    token_ids.frombytes(packed)
    return token_ids.tolist()
