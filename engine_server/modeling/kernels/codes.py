"""Numbers of quantised weights' codes, in a few instructions for each: a conversion of integers is slow on a GPU."""

import triton
import triton.language as tl

# In place of the number of bits of integers.
FLOAT8 = tl.constexpr(0)
# 2 ** 23 in float32, whose low bits are those of the integer added to it.
LARGE = tl.constexpr(0x4B000000)


@triton.jit
def _numbers(
    codes, outputs, kept, start, K: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr, CENTRE: tl.constexpr = 0
):  # fmt: skip
    """Return the numbers of a tile of codes in float32, [outputs, DEPTH]; those beyond K are any finite number.

    start: a multiple of DEPTH. CENTRE: an integer that is subtracted from the numbers.
    """
    if BITS == 4:
        pairs = tl.multiple_of(start // 2, DEPTH // 2) + tl.arange(0, DEPTH // 2)[None, :]
        both = tl.load(codes + outputs * (K // 2) + pairs, mask=kept & (pairs < K // 2), other=0)
        return tl.interleave(_integer(both & 15, CENTRE), _integer(both >> 4, CENTRE))
    inputs = start + tl.arange(0, DEPTH)[None, :]
    code = tl.load(codes + outputs * K + inputs, mask=kept & (inputs < K), other=0)
    return _number(code, BITS, CENTRE)


@triton.jit
def _number(code, BITS: tl.constexpr, CENTRE: tl.constexpr):
    """Return the numbers of codes of 8 bits in float32, minus CENTRE."""
    if BITS == FLOAT8:
        return _float8(code)
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
