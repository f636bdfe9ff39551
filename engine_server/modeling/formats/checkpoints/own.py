"""The form into which model_sources/gguf converts GGUF files: a tensor for each of integers' `GroupedFormat`.

Of stacked experts these tensors are stacked too.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.model_sources.gguf.conversion import METHOD, VERSION
from engine_server.modeling.formats.checkpoints.codes import integer_form
from engine_server.modeling.formats.checkpoints.scheme import Scheme, taken
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.stacked import StackedFormat


class Own(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("version") != VERSION:
            raise ValueError(
                f"version {settings.get('version')} of {METHOD} is not supported; known is {VERSION}"
            )

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        found = {}
        for name in [name for name in parts if name.endswith(("_int4", "_int8"))]:
            base, _, bits = name.rpartition("_int")
            codes = parts.pop(name)
            scales, minima = taken(parts, f"{base}_scales", codes.name), parts.pop(f"{base}_minima", None)
            found[base] = _weight(codes, scales, minima, int(bits))
        return found


def _weight(
    codes: StoredTensor, scales: StoredTensor, minima: StoredTensor | None, bits: int
) -> StoredWeight:
    """Return a weight [out, in], or a stack of experts [experts, out, in]."""
    if len(codes.shape) not in (2, 3) or len(scales.shape) != len(codes.shape) or not scales.shape[-1]:
        raise ValueError(f"{codes.name} and {scales.name} must both have two or three dimensions")
    outputs, inputs = codes.shape[:-1], codes.shape[-1] * 8 // bits
    codes.check(["U8"], codes.shape)
    scales.check(FLOATS, (*outputs, scales.shape[-1]))
    if inputs % scales.shape[-1]:
        raise ValueError(f"{scales.name} has {scales.shape[-1]} groups, which don't divide {inputs} inputs")
    if minima is not None:
        minima.check(FLOATS, scales.shape)
    used = [part for part in (codes, scales, minima) if part is not None]
    form = integer_form(bits, inputs // scales.shape[-1])
    build = partial(_build, codes, scales, minima, form)
    return StoredWeight((*outputs, inputs), used, form, build)


def _build(
    codes: StoredTensor, scales: StoredTensor, minima: StoredTensor | None, form: Form, dtype: torch.dtype
) -> QuantizedFormat:
    for part in (scales, minima):
        if part is not None:
            part.finite()
    whole, factors, lowest = codes.read(), scales.read(), None if minima is None else minima.read()
    if whole.ndim == 2:
        return GroupedFormat(form, whole, factors, dtype, minima=lowest)
    stack = zip(whole, factors, [None] * len(whole) if lowest is None else lowest, strict=True)
    return StackedFormat(
        [GroupedFormat(form, own, scale, dtype, minima=least) for own, scale, least in stack]
    )
