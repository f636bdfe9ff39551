"""The kernel set of any CPU: plain torch, in fewer passes over memory than transformers' modules need."""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.layers.ahead import Ahead
from engine_server.modeling.layers.grouped_experts import GroupedExperts
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.routed_experts import RoutedExperts
from engine_server.modeling.native.recording import one_operation


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the norm of kernels/norm.py."""
    total = x if residual is None else x + residual
    if offset == 0:
        return total, F.rms_norm(total, weight.shape, weight, eps)
    return total, F.rms_norm(total.float(), weight.shape, weight.float() + offset, eps).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: [..., 2 * dim] to [..., dim]. Overwrites gate."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate, inplace=True) * up


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up, with GELU's approximation by tanh: [..., 2 * dim] to [..., dim]."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


class HalfRotation:
    """Rotary position embeddings (RoFormer, arXiv 2104.09864) of dims i and pairs + i, as GPT-NeoX pairs them.

    The pair (a, b) becomes (a cos - b sin, b cos + a sin): x * cos + rolled x * sin, with half of the sines negated.
    """

    def __init__(self) -> None:
        # Cosines and signed sines of a step's angles, which all its layers share, by its sines.
        self._angles = Ahead[tuple[Tensor, Tensor]]()

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate query and key [1, heads, T, dim]; cos, sin: [1, T, dim], each angle twice."""
        angles = self._angles.get(sin)
        if angles is None:
            first, second = sin.unsqueeze(1).chunk(2, -1)
            angles = self._angles.put(sin, (cos.unsqueeze(1), torch.cat((-first, second), -1)))
        return turned(query, *angles), turned(key, *angles)


def turned(x: Tensor, cos: Tensor, signed: Tensor) -> Tensor:
    """Return the rotated heads [1, heads, T, dim]. cos, signed: [1, 1, T, dim], the sines of the first half negated."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), signed)


def rotations(width: int, dim: int) -> list[HalfRotation]:
    """Return the only supported rotation, of whole heads."""
    return [HalfRotation()] if width == dim else []


@one_operation
def add_low_rank(out: Tensor, x: Tensor, slots: Tensor, a: Tensor, b: Tensor, ranks: Tensor) -> Tensor:
    """Add to out [rows, out] the updates of x [rows, in] by the adapters in `slots`, int32 [rows]; -1: none.

    a, b, ranks: see LowRankTable.
    """
    for slot in sorted(set(slots.tolist())):
        rank = int(ranks[slot]) if slot >= 0 else 0
        if rank:
            rows = (slots == slot).nonzero().squeeze(1)
            states = F.linear(x[rows], a[slot, :rank, : x.shape[1]])
            out.index_add_(0, rows, states @ b[slot, :rank, : out.shape[1]])
    return out


CPU = KernelSet(rms_norm, (0.0,), [silu_and_mul], rotations, add_low_rank, experts=(RoutedExperts,))

# For devices on which transformers' own modules are the fastest.
NO_KERNELS = KernelSet(rms_norm, (), (), lambda width, dim: (), add_low_rank, experts=(GroupedExperts,))
