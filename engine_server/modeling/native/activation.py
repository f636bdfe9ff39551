"""Activation functions by the kernel `activate`: each element alone, with bits that don't depend on its place."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.native.library import DTYPES, kernels

# By the number that the kernel takes, torch's function for inputs that it doesn't support.
ACTIVATIONS: Sequence[Callable[[Tensor], Tensor]] = (
    F.gelu,
    partial(F.gelu, approximate="tanh"),
    lambda x: x * torch.sigmoid(1.702 * x),
    F.relu,
    F.silu,
    torch.tanh,
    F.softplus,
)


def activate(kind: int, x: Tensor) -> Tensor:
    """Return an activation of ACTIVATIONS of each element."""
    if x.dtype not in DTYPES:
        return ACTIVATIONS[kind](x)
    x = x.contiguous()
    out = torch.empty_like(x)
    kernels().activate(x.dtype == torch.bfloat16, kind, out.data_ptr(), x.data_ptr(), x.numel())
    return out


softplus = partial(activate, ACTIVATIONS.index(F.softplus))
