"""Quantisation of dense weights by rounding each to the nearest code."""

import torch
from torch import Tensor

from engine_server.modeling.formats.codecs import E4M3, FLOAT, INT4, INT8, packed_codes
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.weight_format import WeightFormat

FLOAT8 = torch.float8_e4m3fn


def rounded_to_integers(format: WeightFormat, bits: int, group: int | None) -> WeightFormat:
    """Return a dense weight in 4 or 8 bits, and any other format unchanged.

    group: inputs that share a scale; None: all. The weight of the largest magnitude in a group gets the code 0, which
    stands for -2 ** (bits - 1) and has no opposite, so its sign is that of the negated scale (as in ggml's Q4_0).
    """
    if not isinstance(format, DenseFormat):
        return format
    weight = format.weight.detach()
    form = Form(INT4 if bits == 4 else INT8, FLOAT, group or weight.shape[1])
    groups = weight.float().view(len(weight), -1, form.group)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    half = 1 << bits - 1
    scales = extreme / -half
    inverse = torch.where(scales == 0, 0, 1 / scales)
    codes = (groups * inverse).round_().add_(half).clamp_(0, 2 * half - 1).to(torch.uint8).view_as(weight)
    if bits == 4:
        codes = packed_codes(codes)
    return GroupedFormat(form, codes, scales.squeeze(-1), weight.dtype, bias=format.bias)


def rounded_to_float8(format: WeightFormat) -> WeightFormat:
    """Return a dense weight in float8 with a scale for each output, and any other format unchanged."""
    if not isinstance(format, DenseFormat):
        return format
    weight = format.weight.detach()
    largest = torch.finfo(FLOAT8).max
    scales: Tensor = weight.float().abs().amax(-1, keepdim=True) / largest
    codes = (weight / torch.where(scales == 0, 1, scales)).clamp_(-largest, largest).to(FLOAT8)
    form = Form(E4M3, FLOAT, weight.shape[1])
    return GroupedFormat(form, codes.view(torch.uint8), scales, weight.dtype, bias=format.bias)
