"""The unpacking of codes of 2 to 8 bits from 32-bit words, and formats from them."""

import torch
from torch import Tensor

from engine_server.modeling.formats.codecs import FLOAT, INT4, INT8, packed_codes
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.reordered import ReorderedFormat

WORD = 32


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return codes that follow each other from the lowest bit of the first word: int32 [..., n] to uint8 [..., m]."""
    count = words.shape[-1] * WORD // bits
    first = torch.arange(count) * bits
    word, shift = first // WORD, first % WORD
    pairs = words.to(torch.int64) & 0xFFFFFFFF
    following = torch.nn.functional.pad(pairs, (0, 1))[..., word + 1]
    pairs = pairs[..., word] | following << WORD
    return (pairs >> shift & (1 << bits) - 1).to(torch.uint8)


def integer_form(bits: int, group: int) -> Form:
    """Return the form of integers of some bits: held in 4 if they are at most 4, else in 8."""
    return Form(INT4 if bits <= 4 else INT8, FLOAT, group)


def integer_format(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, groups: Tensor | None, dtype: torch.dtype
) -> QuantizedFormat:
    """Return the weight scales * (codes - zeros), in `integer_form`.

    codes: uint8 [out, in]; scales, zeros: [out, in / group]; zeros None: 2 ** (bits - 1); groups: the group of each
    input if groups are not contiguous. Raises ValueError for groups of different sizes.
    """
    order = None if groups is None else input_order(groups, scales.shape[-1])
    if order is not None:
        codes = codes.index_select(-1, order)
    form = integer_form(bits, codes.shape[-1] // scales.shape[-1])
    held = form.codes.bits
    minima = None
    if zeros is not None and not (zeros == 1 << bits - 1).all():
        scales = scales.float()
        minima = -scales * zeros
    elif held != bits:
        codes = codes + ((1 << held - 1) - (1 << bits - 1))
    if held == 4:
        codes = packed_codes(codes)
    format = GroupedFormat(form, codes, scales.contiguous(), dtype, minima=minima)
    return format if order is None else ReorderedFormat(format, order)


def input_order(groups: Tensor, count: int) -> Tensor | None:
    """Return the order of inputs in which `count` groups are contiguous; None if they already are.

    groups: int [in]. Raises ValueError for groups of different sizes.
    """
    expected = torch.arange(len(groups)) // (len(groups) // count)
    if torch.equal(groups.long(), expected):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order].long(), expected):
        raise ValueError("the groups of inputs have different sizes")
    return order
