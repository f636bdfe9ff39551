"""Gated linear units: an activation of the gate times the other half (Shazeer 2020, arXiv 2002.05202)."""

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.dependent_launch import dependent, start

Activation = Literal["silu", "gelu", "gelu_tanh"]  # gelu by the error function, or by its approximation

TILE = 1024  # elements per program


def gated(activation: Activation, gate_up: Tensor) -> Tensor:
    """Return activation(gate) * up [..., dim], computed in float32, of gate_up [..., 2 * dim], the gate first."""
    dim = gate_up.shape[-1] // 2
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty(*gate_up.shape[:-1], dim)
    _gated[(triton.cdiv(out.numel(), TILE),)](
        out, gate_up, out.numel() // dim, DIM=dim, TILE=TILE, ACTIVATION=activation, **dependent()
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _gated(
    out, gate_up, num_rows, DIM: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    start(DEPENDENT)
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = places // DIM
    kept, gate = row < num_rows, gate_up + places + row * DIM
    x = tl.load(gate, mask=kept, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        x *= tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x *= 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
    else:  # 0.5 + 0.5 * tanh(y) is the sigmoid of 2 * y
        x *= tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    up = tl.load(gate + DIM, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + places, (x * up).to(out.dtype.element_ty), mask=kept)
