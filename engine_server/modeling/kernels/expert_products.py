"""The grouped products of a mixture of experts: each choice's row with the weight of its expert.

A program multiplies a tile of one expert's choices (expert_tiles.py) with a tile of the expert's outputs. It gathers
the rows itself and stores its results where the choices are, so that nothing is sorted in memory. Quantised weights
are dequantised in registers. A row's product is one running sum over K, whatever the other rows of its tile are.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.activation import Activation, activated
from engine_server.modeling.kernels.codes import _weights, shared_inputs
from engine_server.modeling.kernels.expert_launch import ExpertLaunch
from engine_server.modeling.kernels.expert_tiles import ExpertTiles
from engine_server.modeling.kernels.launch import MIN_TILE

INTERPRETED = triton.knobs.runtime.interpret


class ExpertWeights(NamedTuple):
    """One weight of all experts of a layer: the outputs of each, one expert after another."""

    # [experts * out, in] in the values' dtype; or codes as in `GroupedFormat`.
    data: Tensor
    # Of each expert.
    outputs: int
    # [experts * out]; None: there is none.
    bias: Tensor | None = None
    # Of quantised weights, as there: [experts * out, groups].
    scales: Tensor | None = None
    minima: Tensor | None = None
    # 4 or 8: integers; FLOAT8; FLOAT4; None: not quantised.
    bits: int | None = None
    # Inputs of a scale.
    group: int = 0
    factors: Tensor | None = None


def multiply(
    values: Tensor,
    weights: ExpertWeights,
    choices: ExpertTiles,
    launch: ExpertLaunch,
    gate: Activation | None = None,
) -> Tensor:
    """Return each choice's product with the weight of its expert, with the bias added: [choices, out], or with `gate`
    [choices, out / 2], the gated products.

    values: [choices, in], or [tokens, in] for all choices of each token. Sums are in float32; products are rounded to
    the dtype of `values` before they are gated.
    """
    values = values.contiguous()
    num_choices, depth = len(choices.order), values.shape[1]
    columns = weights.outputs // 2 if gate else weights.outputs
    tile = launch.columns // 2 if gate else launch.columns
    out = values.new_empty(num_choices, columns)
    _multiply[triton.cdiv(columns, tile), len(choices.tiles)](
        out, values, choices.order, choices.tiles, weights.data, weights.scales, weights.minima,
        weights.factors, weights.bias, num_choices // len(values), N=columns, K=depth, GATE=gate,
        BITS=weights.bits, GROUP=weights.group, GROUPS=1 if weights.scales is None else weights.scales.shape[1],
        SHARED=shared_inputs(depth, weights.group, launch.depth),
        ROWS=launch.rows, COLUMNS=max(MIN_TILE, tile), DEPTH=launch.depth, DOT=tl.float32 if INTERPRETED else None,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["copies"])
def _multiply(
    out, values, order, tiles, weights, scales, minima, factors, bias, copies, N: tl.constexpr, K: tl.constexpr,
    GATE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of choices (axis 1) with a tile of outputs (axis 0). copies: choices of a row of `values`."""
    tile = tiles + tl.program_id(1) * 3
    expert = tl.load(tile)
    if expert < 0:
        return
    place = tl.load(tile + 1) + tl.arange(0, ROWS)
    used = place < tl.load(tile + 2)
    choice = tl.load(order + place, mask=used, other=0)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    kept, depth = columns < N, tl.arange(0, DEPTH)
    rows = values + (choice // copies).to(tl.int64)[:, None] * K
    # The outputs of the expert: those of the gate, and with them those of `up`, in the order of the class.
    if GATE is None:
        outputs = expert.to(tl.int64) * N + columns
    elif GATE == "clamped_silu":
        outputs = expert.to(tl.int64) * 2 * N + 2 * columns
        ups = outputs + 1
    else:
        outputs = expert.to(tl.int64) * 2 * N + columns
        ups = outputs + N
    dtype: tl.constexpr = values.dtype.element_ty
    dot_type: tl.constexpr = dtype if DOT is None else DOT
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, K, DEPTH):
        inside = start + depth < K
        left = tl.load(rows + (start + depth)[None, :], mask=used[:, None] & inside[None, :], other=0.0).to(
            dot_type
        )
        right = _columns(
            weights, scales, minima, factors, outputs, kept, start, K, BITS, GROUP, GROUPS, SHARED, COLUMNS,
            DEPTH, dtype,
        )  # fmt: skip
        total = tl.dot(left, right.to(dot_type), total, input_precision="ieee")
        if GATE is not None:
            right = _columns(
                weights, scales, minima, factors, ups, kept, start, K, BITS, GROUP, GROUPS, SHARED, COLUMNS,
                DEPTH, dtype,
            )  # fmt: skip
            up = tl.dot(left, right.to(dot_type), up, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + outputs, mask=kept, other=0.0).to(tl.float32)[None, :]
    if GATE is not None:
        if bias is not None:
            up += tl.load(bias + ups, mask=kept, other=0.0).to(tl.float32)[None, :]
        total = activated(total.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32), GATE)
    targets = out + choice.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(targets, total.to(dtype), mask=used[:, None] & kept[None, :])


@triton.jit
def _columns(
    weights, scales, minima, factors, outputs, kept, start, K: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Return the weights of some outputs from the input `start` on, [DEPTH, outputs]; those beyond K are finite."""
    if BITS is None:
        inputs = start + tl.arange(0, DEPTH)
        places = outputs[None, :] * K + inputs[:, None]
        result = tl.load(weights + places, mask=kept[None, :] & (inputs < K)[:, None], other=0.0)
    else:
        rows = _weights(
            weights, scales, minima, factors, outputs[:, None], kept[:, None], start, K, BITS, GROUP, GROUPS, SHARED,
            COLUMNS, DEPTH,
        )  # fmt: skip
        result = tl.trans(rows.to(dtype))
    return result
