"""Gated linear units: an activation of the gate, times what goes through it (Shazeer 2020, arXiv 2002.05202)."""

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh"]  # gelu by the error function, or by its approximation

TILE = 1024  # elements that one program takes


def gated(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, computed in float32, in gate's type.

    gate, up: [..., dim] of equal type and shape; they may be the halves of one tensor's rows.
    """
    out = gate.new_empty(gate.shape)
    dim = gate.shape[-1]
    gate, up = (given.reshape(-1, dim) for given in (gate, up))
    gate, up = (given if given.stride(-1) == 1 else given.contiguous() for given in (gate, up))
    _gated[len(gate), triton.cdiv(dim, TILE)](
        out, gate, up, gate.stride(0), up.stride(0), DIM=dim, TILE=TILE, ACTIVATION=activation
    )
    return out


@triton.jit
def _gated(out, gate, up, gate_row, up_row, DIM: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * TILE + tl.arange(0, TILE)
    kept = dims < DIM
    x = tl.load(gate + row * gate_row + dims, mask=kept, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        x *= tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x *= 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
    else:  # 0.5 + 0.5 * tanh(y) is the sigmoid of 2 * y
        x *= tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    through = tl.load(up + row * up_row + dims, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * DIM + dims, (x * through).to(out.dtype.element_ty), mask=kept)
