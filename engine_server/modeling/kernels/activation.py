"""Gated linear units: an activation of the gate times the other half (Shazeer 2020, arXiv 2002.05202)."""

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.dependent_launch import dependent, start

# gelu by the error function, or by its approximation; clamped_silu is that of gpt-oss, whose gate and up alternate.
Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_silu"]

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
    kept = row < num_rows
    if ACTIVATION == "clamped_silu":
        first, second = gate_up + 2 * places, gate_up + 2 * places + 1
    else:
        first, second = gate_up + places + row * DIM, gate_up + places + row * DIM + DIM
    gate = tl.load(first, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(second, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + places, activated(gate, up, ACTIVATION).to(out.dtype.element_ty), mask=kept)


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """Return activation(gate) * up, all in float32."""
    if ACTIVATION == "silu":
        share = tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        share = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
    elif ACTIVATION == "gelu_tanh":  # 0.5 + 0.5 * tanh(y) is the sigmoid of 2 * y
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate, up = tl.minimum(gate, 7.0), tl.clamp(up, -7.0, 7.0) + 1
        share = tl.sigmoid(1.702 * gate)
    return gate * share * up
