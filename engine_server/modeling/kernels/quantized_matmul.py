"""Linear layers of quantised weights, which are dequantised in registers: memory holds and passes on codes alone.

Codes keep the order in which checkpoints' formats have them. A program multiplies a tile of rows with a tile of
columns, and sums over K in one order; decode has tiles of 16 rows, the minimum of a tensor core.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.launch import MIN_TILE

INTERPRETED = triton.knobs.runtime.interpret
ROWS, COLUMNS, DEPTH_BYTES = 64, 64, 256  # of a tile; DEPTH_BYTES: of a row of values
FLOAT8 = tl.constexpr(0)  # in place of the number of bits of integers


def integer_linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    bits: int,
    group: int,
    bias: Tensor | None,
) -> Tensor:
    """Return x @ weight.T + bias in x's dtype, summed in float32, with weights rounded to x's dtype.

    x: [..., K]; codes, scales, minima: as in `IntegerFormat`, contiguous; bits: 4 or 8; bias: [N].
    """
    return _multiply(x, codes, scales, minima, bias, bits, group)


def float8_linear(x: Tensor, codes: Tensor, scales: Tensor, group: int, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias in x's dtype, summed in float32, with weights rounded to x's dtype.

    x: [..., K]; codes, scales: as in `Float8Format`, contiguous; bias: [N].
    """
    return _multiply(x, codes.view(torch.uint8), scales, None, bias, FLOAT8.value, group)


def _multiply(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    bias: Tensor | None,
    bits: int,
    group: int,
) -> Tensor:
    columns, depth = len(codes), x.shape[-1]
    out = x.new_empty(*x.shape[:-1], columns)
    x = x.reshape(-1, depth).contiguous()
    rows = MIN_TILE if len(x) <= MIN_TILE else ROWS
    _quantized_linear[(triton.cdiv(len(x), rows), triton.cdiv(columns, COLUMNS))](
        out, x, codes, scales, minima, bias, len(x), N=columns, K=depth, BITS=bits, GROUP=group,
        GROUPS=scales.shape[1], ROWS=rows, COLUMNS=COLUMNS, DEPTH=DEPTH_BYTES // x.element_size(),
        DOT=tl.float32 if INTERPRETED else None, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_linear(
    out, x, codes, scales, minima, bias, num_rows, N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    outputs, kept = columns[:, None], (columns < N)[:, None]
    depth = tl.arange(0, DEPTH)[None, :]
    dot_type: tl.constexpr = x.dtype.element_ty if DOT is None else DOT
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, K, DEPTH):
        inputs = start + depth
        left = tl.load(x + rows * K + inputs, mask=(rows < num_rows) & (inputs < K), other=0.0)
        numbers = _numbers(codes, outputs, kept, start, K, BITS, DEPTH)
        if GROUP % DEPTH == 0 or GROUPS == 1:  # one scale for each column of the tile
            groups, scaled = outputs * GROUPS + start // GROUP, kept
        else:
            groups, scaled = outputs * GROUPS + inputs // GROUP, kept & (inputs < K)
        scale = tl.load(scales + groups, mask=scaled, other=0.0).to(tl.float32)
        if minima is None and BITS != FLOAT8:  # the codes of symmetric weights
            numbers -= 1 << BITS - 1
        weight = numbers * scale
        if minima is not None:
            weight += tl.load(minima + groups, mask=scaled, other=0.0).to(tl.float32)
        right = tl.trans(weight.to(x.dtype.element_ty).to(dot_type))
        total = tl.dot(left.to(dot_type), right, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    places = rows * N + columns[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), mask=(rows < num_rows) & (columns < N)[None, :])


@triton.jit
def _numbers(
    codes, outputs, kept, start, K: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Return the numbers of a tile of codes in float32, [outputs, DEPTH]; those beyond K are any finite number."""
    if BITS == 4:
        pairs = start // 2 + tl.arange(0, DEPTH // 2)[None, :]
        both = tl.load(codes + outputs * (K // 2) + pairs, mask=kept & (pairs < K // 2), other=0)
        return tl.interleave(both & 15, both >> 4).to(tl.float32)
    inputs = start + tl.arange(0, DEPTH)[None, :]
    code = tl.load(codes + outputs * K + inputs, mask=kept & (inputs < K), other=0)
    if BITS == 8:
        return code.to(tl.float32)
    # E4M3 in float16, whose exponent has a bias greater by 8: GPUs before 8.9 have no conversion.
    bits = code.to(tl.uint16)
    number = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True).to(tl.float32) * 256
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), number)
