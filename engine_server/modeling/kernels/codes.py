"""The weights of a tile of codes, in a few instructions for each: a conversion of integers is slow on a GPU."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

# In place of the number of bits of integers: E4M3, E2M1.
FLOAT8 = tl.constexpr(0)
FLOAT4 = tl.constexpr(1)
# 2 ** 23 in float32, whose low bits are those of the integer added to it.
LARGE = tl.constexpr(0x4B000000)


class QuantizedWeight(NamedTuple):
    """A quantised weight [N, K] with its bias; codes, scales, minima, factors: as in `GroupedFormat`, contiguous."""

    # uint8.
    codes: Tensor
    # Floating; uint8: E4M3 with factors, powers of two without.
    scales: Tensor
    minima: Tensor | None
    # [N]
    bias: Tensor | None
    # 4 or 8; FLOAT8; FLOAT4.
    bits: int
    # Inputs that share a scale.
    group: int
    factors: Tensor | None = None


def shared_inputs(inputs: int, group: int, depth: int) -> int:
    """Return how many inputs of a tile share a scale, a power of two; depth: of the tile, one too."""
    return depth if group >= inputs else min(depth, group & -group)


def code_bits(bits: int) -> int:
    """Return the width of a code; bits: as `QuantizedWeight` has it."""
    return 4 if bits in (4, FLOAT4.value) else 8


@triton.jit
def _weights(
    codes, scales, minima, factors, outputs, kept, start, K: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile in float32, [OUTPUTS, DEPTH]; those beyond K are any finite number.

    outputs, kept: [OUTPUTS, 1]; start: a multiple of DEPTH; SHARED: `shared_inputs`.
    """
    PARTS: tl.constexpr = DEPTH // SHARED
    CENTRE: tl.constexpr = 0 if minima is not None or BITS < 4 else 1 << BITS - 1
    numbers = _numbers(codes, outputs, kept, start, K, BITS, DEPTH, CENTRE)
    groups = ((start + tl.arange(0, PARTS) * SHARED) // GROUP)[None, :]
    places, scaled = outputs * GROUPS + groups, kept & (groups < GROUPS)
    scale = _scales(scales, factors, places, scaled)
    weights = tl.reshape(numbers, [OUTPUTS, PARTS, SHARED]) * scale[:, :, None]
    if minima is not None:
        weights += tl.load(minima + places, mask=scaled, other=0.0).to(tl.float32)[:, :, None]
    if factors is not None:
        weights *= tl.load(factors + outputs, mask=kept, other=0.0)[:, :, None]
    return tl.reshape(weights, [OUTPUTS, DEPTH])


@triton.jit
def _scales(scales, factors, places, kept):
    """Return scales in float32, before factors."""
    scale = tl.load(scales + places, mask=kept, other=0)
    if scales.dtype.element_ty != tl.uint8:
        return scale.to(tl.float32)
    elif factors is not None:
        return _float8(scale)
    else:
        exponent = scale.to(tl.int32)
        return tl.where(exponent == 0, 1 << 22, exponent << 23).to(
            tl.float32, bitcast=True
        )  # 2^-127 is denormal


@triton.jit
def _numbers(
    codes, outputs, kept, start, K: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr, CENTRE: tl.constexpr = 0
):  # fmt: skip
    """Return the numbers of a tile of codes in float32, [outputs, DEPTH]; those beyond K are any finite number.

    start: a multiple of DEPTH. CENTRE: an integer that is subtracted from the numbers.
    """
    if BITS == 4 or BITS == FLOAT4:
        pairs = tl.multiple_of(start // 2, DEPTH // 2) + tl.arange(0, DEPTH // 2)[None, :]
        both = tl.load(codes + outputs * (K // 2) + pairs, mask=kept & (pairs < K // 2), other=0)
        return tl.interleave(_number(both & 15, BITS, CENTRE), _number(both >> 4, BITS, CENTRE))
    inputs = start + tl.arange(0, DEPTH)[None, :]
    code = tl.load(codes + outputs * K + inputs, mask=kept & (inputs < K), other=0)
    return _number(code, BITS, CENTRE)


@triton.jit
def _number(code, BITS: tl.constexpr, CENTRE: tl.constexpr):
    """Return the numbers of codes, each in a byte, in float32, minus CENTRE."""
    if BITS == FLOAT8:
        return _float8(code)
    elif BITS == FLOAT4:
        return _float4(code)
    else:
        return _integer(code, CENTRE)


@triton.jit
def _integer(code, CENTRE: tl.constexpr):
    return (code.to(tl.uint32) | LARGE).to(tl.float32, bitcast=True) - (8388608.0 + CENTRE)


@triton.jit
def _float8(code):
    """Return E4M3 in float32; GPUs before 8.9 have no conversion."""
    if tl.target_info.cuda_capability_geq(8, 9):
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)
    else:
        bits = code.to(tl.int8, bitcast=True).to(tl.int32) << 20
        # The exponent of float32 has a bias that is greater by 120.
        number = (bits & -0x78100000).to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0
        return tl.where((bits & 0x07F00000) == 0x07F00000, float("nan"), number)


@triton.jit
def _float4(code):
    """Return E2M1 in float32, whose exponent has a bias that is greater by 126."""
    bits = code.to(tl.int32)
    number = ((bits & 8) << 28 | (bits & 7) << 22).to(tl.float32, bitcast=True)
    return number * 85070591730234615865843651857942052864.0
