"""Sets of tokens as bits, the lowest bit of a byte first, as llguidance fills them."""

import numpy as np
import numpy.typing as npt

# uint8 [bytes].
Bits = npt.NDArray[np.uint8]


def num_bytes(vocabulary: int) -> int:
    """Return the number of bytes of a row of bits: whole words of 32 bits."""
    return (vocabulary + 31) // 32 * 4


def bits_of(token_ids: list[int], size: int) -> Bits:
    """Return a row of `size` bytes with the bits of these tokens."""
    bits = np.zeros(size, np.uint8)
    ids = np.asarray(token_ids, np.int64)
    np.bitwise_or.at(bits, ids >> 3, (1 << (ids & 7)).astype(np.uint8))
    return bits
