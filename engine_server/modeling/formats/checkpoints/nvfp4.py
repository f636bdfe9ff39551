"""NVFP4: float4 codes, a float8 scale for each 16 inputs, and one factor for the whole weight.

Codes: uint8 [out, in / 2], the even input in the low half; scales: E4M3 [out, in / 16]; factor: one float. Libraries
mean opposite things by it, for weights of the largest magnitude `amax`: compressed-tensors stores (448 * 6) / amax and
divides scales by it, ModelOpt stores amax / (448 * 6) and multiplies.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.codecs import E2M1, E4M3
from engine_server.modeling.formats.finite import all_finite
from engine_server.modeling.formats.grouped import Form, GroupedFormat

BLOCK = 16
FORM = Form(E2M1, E4M3, BLOCK)


def nvfp4_weight(
    codes: StoredTensor,
    scales: StoredTensor,
    stored_factor: StoredTensor,
    multiplier: Callable[[Tensor], Tensor],
) -> StoredWeight:
    """Return the weight of the tensors of a module. multiplier: returns what scales are multiplied by."""
    codes.check_dimensions(2)
    outputs, inputs = codes.shape[0], 2 * codes.shape[1]
    if inputs % BLOCK:
        raise ValueError(
            f"{codes.name} has codes of {inputs} inputs; expected is a multiple of {BLOCK}, which share a scale"
        )
    codes.check(["U8"], codes.shape)
    scales.check(["F8_E4M3"], (outputs, inputs // BLOCK))
    if stored_factor.dtype not in FLOATS or stored_factor.shape not in ((), (1,)):
        found = f"{stored_factor.dtype} {list(stored_factor.shape)}"
        raise ValueError(f"{stored_factor.name} is {found}; expected is one float")
    build = partial(_build, codes, scales, stored_factor, multiplier)
    return StoredWeight((outputs, inputs), (codes, scales, stored_factor), FORM, build)


def _build(
    codes: StoredTensor,
    scales: StoredTensor,
    stored_factor: StoredTensor,
    multiplier: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
) -> GroupedFormat:
    factor = multiplier(stored_factor.finite())
    if not all_finite(factor):
        raise ValueError(
            f"{stored_factor.name} is {stored_factor.read().item()}, by which nothing is divided"
        )
    own_scales = scales.finite().to(torch.float8_e4m3fn).view(torch.uint8)
    factors = factor.view(1, 1).repeat(codes.shape[0], 1)
    return GroupedFormat(FORM, codes.read(), own_scales, dtype, factors=factors)
