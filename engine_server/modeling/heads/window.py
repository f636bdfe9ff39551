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
