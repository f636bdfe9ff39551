"""The kernels that modules of transformers can be given on one kind of device."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

# query, key [1, heads, T, dim], cos, sin [1, T, angles] to the rotated query and key.
Rotation = Callable[..., tuple[Tensor, Tensor]]
# [..., 2 * dim] to [..., dim]; may overwrite its input.
Gate = Callable[[Tensor], Tensor]


class KernelSet(NamedTuple):
    """Kernels of which the passes choose the ones that compute what a model's own modules do."""

    # (x, weight, eps, offset, residual) to the sum and its norm: see kernels/norm.py.
    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    # The offsets of the weight that `rms_norm` knows.
    offsets: Sequence[float]
    gates: Sequence[Gate]
    # From a token's number of angles and the size of a head to the rotations that could be meant.
    rotations: Callable[[int, int], Sequence[Rotation]]
