"""The kernel set of a GPU with Triton."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import get_args

from torch import Tensor

from engine_server.modeling.heads.pending import PendingRotation
from engine_server.modeling.kernels.activation import Activation, gated
from engine_server.modeling.kernels.low_rank import add_low_rank
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate
from engine_server.modeling.kernels.router import choose
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.grouped_experts import GroupedExperts
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet, Rotation


@dataclass(frozen=True)
class HeadRotation:
    """`rotate` with one layout of the angles."""

    # The indexes of the angles, each angle once.
    angles: slice
    interleaved: bool

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        pending = self.pending(cos, sin)
        query, key = (part[0].transpose(0, 1) for part in (query, key))
        query, key = (part.transpose(0, 1)[None] for part in rotate(query, key, *pending[1:]))
        return query, key

    def pending(self, cos: Tensor, sin: Tensor) -> PendingRotation:
        """Return the rotation by angles [1, T, angles], for attention to compute."""
        return PendingRotation(rotate, cos[0, :, self.angles], sin[0, :, self.angles], self.interleaved)


def rotations(width: int, dim: int) -> list[Rotation]:
    """Return `rotate` with every layout of the angles that a model may use."""
    once = [slice(width // 2), slice(0, width, 2), *[slice(width)] * (2 * width <= dim)]
    return [HeadRotation(*form) for form in product(once, (False, True))]


TRITON = KernelSet(
    rms_norm, (0.0, 1.0), [partial(gated, name) for name in get_args(Activation)], rotations, add_low_rank,
    experts=(FusedExperts, GroupedExperts), choose=choose,
)  # fmt: skip
