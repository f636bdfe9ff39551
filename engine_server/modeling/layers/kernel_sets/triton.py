"""The kernel set of a GPU with Triton."""

from functools import partial
from itertools import product
from typing import get_args

from torch import Tensor

from engine_server.modeling.kernels.activation import Activation, gated
from engine_server.modeling.kernels.low_rank import add_low_rank
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate
from engine_server.modeling.kernels.router import choose
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.grouped_experts import GroupedExperts
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet, Rotation


def rotations(width: int, dim: int) -> list[Rotation]:
    """Return `rotate` with every layout of the angles that a model may use."""
    # The indexes of the angles among `width`, each angle once.
    once = [slice(width // 2), slice(0, width, 2), *[slice(width)] * (2 * width <= dim)]
    return [partial(_rotate, *form) for form in product(once, (False, True))]


def _rotate(
    angles: slice, interleaved: bool, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    query, key = (part[0].transpose(0, 1) for part in (query, key))
    rotated = rotate(query, key, cos[0, :, angles], sin[0, :, angles], interleaved)
    query, key = (part.transpose(0, 1)[None] for part in rotated)
    return query, key


TRITON = KernelSet(
    rms_norm, (0.0, 1.0), [partial(gated, name) for name in get_args(Activation)], rotations, add_low_rank,
    experts=(FusedExperts, GroupedExperts), choose=choose,
)  # fmt: skip
