"""What modules of transformers are made to run on a CPU: plain torch, in fewer passes than their own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.layers.fused_modules import Kernels


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As kernels/norm.py has it; offset: 0."""
    total = x if residual is None else x + residual
    return total, F.rms_norm(total, weight.shape, weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2 * dim]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate, inplace=True) * up


class Turning:
    """Rotary position embeddings (RoFormer, arXiv 2104.09864) of dims i and pairs + i, as GPT-NeoX pairs them.

    The pair (a, b) becomes (a cos - b sin, b cos + a sin): x * cos + rolled x * sin, its first half with minus signs.
    """

    sin: Tensor | None = None  # of the step for which the rest was made

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """query, key: [1, heads, T, dim]; cos, sin: [1, T, dim], each angle twice."""
        if sin is not self.sin:
            self.sin, self.cos = sin, cos.unsqueeze(1)
            first, second = sin.unsqueeze(1).chunk(2, -1)
            self.signed = torch.cat((-first, second), -1)
        return self._turn(query), self._turn(key)

    def _turn(self, x: Tensor) -> Tensor:
        return (x * self.cos).addcmul_(x.roll(x.shape[-1] // 2, -1), self.signed)


def turns(width: int, dim: int) -> list[Turning]:
    """There is one way, for heads that turn as a whole."""
    return [Turning()] if width == dim else []


CPU = Kernels(rms_norm, (0.0,), [silu_and_mul], turns)
