"""The product of one row of values with quantised weights, which is as fast as memory passes on their codes.

A program computes some outputs over all of K, without tensor cores: a warp reads an output's codes in words of 4 bytes,
multiplies each code where it lies in its word with a value that is scaled for that place, and adds up the products of a
group before it scales them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.codes import (
    FLOAT4,
    FLOAT8,
    LARGE,
    QuantizedWeight,
    _scales,
    code_bits,
    shared_inputs,
)

# Chosen on an H200 by `python -m benchmarks.gpu.quantised`. Of a step; DEPTH_BYTES: of an output's codes.
COLUMNS, DEPTH_BYTES, WARPS = 16, 512, 4
# The smallest power of two that may divide a group.
LEAST_SHARED = 16


def multiplies_words(inputs: int, group: int, bits: int) -> bool:
    """Return True if the codes of an output are whole words, and groups not too small for the kernel."""
    return inputs * code_bits(bits) % 32 == 0 and shared_inputs(inputs, group, depth(bits)) >= LEAST_SHARED


def depth(bits: int) -> int:
    """Return the inputs of a step."""
    return DEPTH_BYTES * 8 // code_bits(bits)


def multiply_row(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return x @ weight.T + bias in x's dtype; weights are not rounded, and sums are in float32.

    x: [1, K].
    """
    codes, scales, minima, bias, bits, group, factors = weight
    columns, inputs = len(codes), x.shape[1]
    out = x.new_empty(1, columns)
    _multiply_row[(triton.cdiv(columns, COLUMNS),)](
        out, x, codes.view(torch.int32), scales, minima, factors, bias, columns, LARGE.value, K=inputs, BITS=bits,
        GROUP=group, GROUPS=scales.shape[1], SHARED=shared_inputs(inputs, group, depth(bits)), COLUMNS=COLUMNS,
        WORDS=DEPTH_BYTES // 4, num_warps=WARPS,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["large"])
def _multiply_row(
    out, x, codes, scales, minima, factors, bias, N, large, K: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Set `out` for a tile of columns; codes: int32 [N, K / codes of a word]; large: LARGE."""
    IN_WORD: tl.constexpr = 8 if BITS == 4 or BITS == FLOAT4 else 4
    LENGTH: tl.constexpr = K // IN_WORD
    CENTRE: tl.constexpr = 0 if BITS < 4 else 1 << BITS - 1
    PARTS: tl.constexpr = WORDS * IN_WORD // SHARED  # of a step, each with one scale
    outputs = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    columns, kept = outputs.to(tl.int64)[:, None], (outputs < N)[:, None]
    total = tl.zeros([COLUMNS, PARTS], tl.float32)
    for start in tl.range(0, LENGTH, WORDS):
        words = start + tl.arange(0, WORDS)
        inside = words < LENGTH
        word = tl.load(codes + columns * LENGTH + words[None, :], mask=kept & inside[None, :], other=0)
        products = tl.zeros([COLUMNS, WORDS], tl.float32)
        values = tl.zeros([WORDS], tl.float32)
        for place in tl.static_range(IN_WORD):
            value = tl.load(x + words * IN_WORD + place, mask=inside, other=0.0).to(tl.float32)
            values += value
            if BITS == FLOAT8:
                products += _float8_at(word, place) * value[None, :]
            elif BITS == FLOAT4:
                products += _float4_at(word, place) * value[None, :]
            else:
                number, factor = _integer_at(word, place, BITS, large)
                products += number * (value * factor)[None, :]
        if BITS == FLOAT8:  # a NaN is the only code whose addition of one carries
            products = tl.where((word & 0x7F7F7F7F) + 0x01010101 & -0x7F7F7F80 != 0, float("nan"), products)
        groups = ((start * IN_WORD + tl.arange(0, PARTS) * SHARED) // GROUP)[None, :]
        places, scaled = columns * GROUPS + groups, kept & (groups < GROUPS)
        scale = _scales(scales, factors, places, scaled)
        total += tl.sum(tl.reshape(products, [COLUMNS, PARTS, WORDS // PARTS]), 2) * scale
        if minima is not None:
            least = tl.load(minima + places, mask=scaled, other=0.0).to(tl.float32) + CENTRE * scale
            total += least * tl.sum(tl.reshape(values, [PARTS, WORDS // PARTS]), 1)[None, :]
    result = tl.sum(total, 1)
    if BITS == FLOAT8:
        result *= 256.0  # the difference of the exponents' biases
    if BITS == FLOAT4:
        result *= 16384.0
    if factors is not None:
        result *= tl.load(factors + outputs, mask=outputs < N, other=0.0)
    if bias is not None:
        result += tl.load(bias + outputs, mask=outputs < N, other=0.0).to(tl.float32)
    tl.store(out + outputs, result.to(out.dtype.element_ty), mask=outputs < N)


@triton.jit
def _integer_at(word, PLACE: tl.constexpr, BITS: tl.constexpr, large):
    """Return a code of a word in float32, minus half of the codes' range, times a power of two; and its inverse.

    `large` is an argument of the kernel, and no constant, so that one instruction takes it and a mask.
    """
    # The codes of the low 23 bits, which are a float's; others are shifted there.
    LOW: tl.constexpr = 5 if BITS == 4 else 2
    SHIFT: tl.constexpr = PLACE % LOW * BITS
    bits = word >> PLACE // LOW * LOW * BITS & ((1 << BITS) - 1 << SHIFT) | large
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + (1 << BITS - 1 + SHIFT)), 1.0 / (1 << SHIFT)


@triton.jit
def _float8_at(word, PLACE: tl.constexpr):
    """Return a code of a word in float32, divided by 256: as a float16, two of which are made at once."""
    placed = word << 8 if PLACE % 2 == 0 else word
    both = (placed & -0x7FFF8000) | (placed >> 1 & 0x3F803F80)
    return (both >> PLACE // 2 * 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _float4_at(word, PLACE: tl.constexpr):
    """Return a code of a word in float32, divided by 16384: as a float16."""
    code = word >> 4 * PLACE
    return ((code & 8) << 12 | (code & 7) << 9).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
