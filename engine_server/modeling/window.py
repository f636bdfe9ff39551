"""Windows of attention: which of the earlier tokens a token sees."""

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

# The position of one token, or of many.
Positions = TypeVar("Positions", int, npt.NDArray[np.int64], Tensor)


class Window(NamedTuple):
    """The last `size` tokens, the token itself included, or of a chunk those since the last multiple of `size`."""

    size: int
    chunked: bool = False

    def __str__(self) -> str:
        return f"{'chunks' if self.chunked else 'a window'} of {self.size} tokens"

    def seen(self, position: Positions) -> Positions | int:
        """Return how many of the last tokens the one at a position sees, the token itself included.

        It may be more than there are.
        """
        return position % self.size + 1 if self.chunked else self.size

    def first_seen(self, position: int) -> int:
        """Return the first position that the token at a position sees. It never decreases."""
        return max(0, position + 1 - self.seen(position))

    def num_blocks(self, block_size: int) -> int:
        """Return the most blocks that one token's window touches; it may begin and end within a block."""
        return -(-self.size // block_size) + 2

    def passed_at(self, position: int) -> int:
        """Return the first position whose token sees none before `position`."""
        return -(-position // self.size) * self.size if self.chunked else position + self.size - 1
