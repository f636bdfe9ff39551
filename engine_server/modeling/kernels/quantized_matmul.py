"""Linear layers of quantised weights, which are dequantised in registers: memory holds and passes on codes alone.

Codes keep the order in which checkpoints' formats have them. A program multiplies a tile of outputs with a tile of rows
over a part of K. The parts of K give a GPU enough programs where the outputs alone don't, and a second kernel adds
their sums in order. Of many rows each tile would dequantise the same weights again: those are dequantised once, and a
library multiplies them.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.codes import QuantizedWeight, _weights, shared_inputs
from engine_server.modeling.kernels.dequantise import multiply_dequantised
from engine_server.modeling.kernels.launch import MIN_TILE
from engine_server.modeling.kernels.quantized_row import multiplies_words, multiply_row

INTERPRETED = triton.knobs.runtime.interpret
ROWS, DEPTH_BYTES = 64, 256  # of a tile; DEPTH_BYTES: of a row of values
# Programs for each processor, so that some compute while others wait for memory.
PROGRAMS = 2
# Steps of a part of K: with fewer, the first copies take longer than the products.
LEAST_STEPS = 4
# The largest number of rows for which dequantising again for each tile takes less than writing dense weights.
MOST_ROWS = 128
# Sums that a program of `_add_parts` adds.
ADDED = 1024


class Launch(NamedTuple):
    """Settings of the kernel of tiles."""

    # Outputs of a tile.
    columns: int
    warps: int
    stages: int
    # Of a thread at most. None: as many as the compiler likes.
    registers: int | None = None


# Chosen on an H200 by `python -m benchmarks.gpu.quantised`.
LAUNCH = Launch(64, 4, 3)


class Tiling(NamedTuple):
    """The work of each program of a product."""

    launch: Launch
    # Rows of a tile.
    rows: int
    # Inputs of a step, and those among them that share a scale.
    depth: int
    shared: int
    # Parts of K, each of as many steps, except the last.
    parts: int
    steps: int


def tiling(rows: int, columns: int, inputs: int, group: int, element_size: int, processors: int) -> Tiling:
    """Return the tiles of a product with weights [columns, inputs].

    group: inputs that share a scale; element_size: of values, in bytes.
    """
    rows = min(ROWS, max(MIN_TILE, triton.next_power_of_2(rows)))
    depth = DEPTH_BYTES // element_size
    shared = shared_inputs(inputs, group, depth)
    all_steps = triton.cdiv(inputs, depth)
    wanted = triton.cdiv(PROGRAMS * processors, triton.cdiv(columns, LAUNCH.columns))
    steps = triton.cdiv(all_steps, max(1, min(wanted, all_steps // LEAST_STEPS)))
    return Tiling(LAUNCH, rows, depth, shared, triton.cdiv(all_steps, steps), steps)


@cache
def processors(device: torch.device) -> int:
    """Return the number of a GPU's processors, and 1 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def multiply(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return x @ weight.T + bias in x's dtype, summed in float32: [..., K] to [..., N]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    if len(rows) > MOST_ROWS:
        product = multiply_dequantised
    elif len(rows) == 1 and multiplies_words(x.shape[-1], weight.group, weight.bits):
        product = multiply_row
    else:
        product = _multiply_tiles
    return product(rows, weight).view(*x.shape[:-1], len(weight.codes))


def _multiply_tiles(x: Tensor, weight: QuantizedWeight) -> Tensor:
    codes, scales, minima, bias, bits, group, factors = weight
    (count, depth), columns = x.shape, len(codes)
    tile = tiling(count, columns, depth, group, x.element_size(), processors(x.device))
    out = x.new_empty(count, columns)
    parts = x.new_empty(tile.parts, count, columns, dtype=torch.float32) if tile.parts > 1 else None
    _multiply_tile[(triton.cdiv(columns, tile.launch.columns), tile.parts, triton.cdiv(count, tile.rows))](
        out if parts is None else parts, x, codes, scales, minima, factors, bias if parts is None else None, count,
        columns, tile.steps, K=depth, BITS=bits, GROUP=group, GROUPS=scales.shape[1], ROWS=tile.rows,
        COLUMNS=tile.launch.columns, DEPTH=tile.depth, SHARED=tile.shared, DOT=tl.float32 if INTERPRETED else None,
        num_warps=tile.launch.warps, num_stages=tile.launch.stages, maxnreg=tile.launch.registers,
    )  # fmt: skip
    if parts is not None:
        _add_parts[(triton.cdiv(out.numel(), ADDED),)](
            out, parts, bias, out.numel(), columns, tile.parts, WIDTH=ADDED
        )
    return out


@triton.jit(do_not_specialize=["num_rows", "steps"])
def _multiply_tile(
    out, x, codes, scales, minima, factors, bias, num_rows, N, steps, K: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    SHARED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Set out[part, row, column] for a tile of columns (axis 0) and of rows (axis 2), over a part of K (axis 1).

    Weights are the left operand, which tensor cores take from registers.
    """
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[:, None]
    rows = (tl.program_id(2) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    kept, depth = columns < N, tl.arange(0, DEPTH)
    dtype: tl.constexpr = x.dtype.element_ty
    dot_type: tl.constexpr = dtype if DOT is None else DOT
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    first = tl.program_id(1) * steps * DEPTH
    for start in tl.range(first, min(first + steps * DEPTH, K), DEPTH):
        inputs = (start + depth)[:, None]
        right = tl.load(x + rows * K + inputs, mask=(rows < num_rows) & (inputs < K), other=0.0)
        weights = _weights(
            codes, scales, minima, factors, columns, kept, start, K, BITS, GROUP, GROUPS, SHARED, COLUMNS, DEPTH
        )  # fmt: skip
        total = tl.dot(weights.to(dtype).to(dot_type), right.to(dot_type), total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + columns, mask=kept, other=0.0).to(tl.float32)
    target = out + (tl.program_id(1) * num_rows + rows) * N + columns
    tl.store(target, total.to(out.dtype.element_ty), mask=(rows < num_rows) & kept)


@triton.jit(do_not_specialize=["size", "num_parts"])
def _add_parts(out, parts, bias, size, N, num_parts, WIDTH: tl.constexpr):
    """Set out[row, column] to the sum of parts[:, row, column] in order, plus the bias."""
    places = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    kept = places < size
    total = tl.zeros([WIDTH], tl.float32)
    for part in range(num_parts):
        total += tl.load(parts + places + part * size.to(tl.int64), mask=kept, other=0.0)
    if bias is not None:
        total += tl.load(bias + places % N, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=kept)
