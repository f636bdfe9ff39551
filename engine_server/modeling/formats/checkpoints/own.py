"""The form into which models/gguf.py converts GGUF files: a tensor for each attribute of `IntegerFormat`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.modeling.formats.checkpoints.scheme import Scheme, taken
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.integer import IntegerFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.models.gguf import METHOD, VERSION


class Own(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("version") != VERSION:
            raise ValueError(
                f"version {settings.get('version')} of {METHOD} is not supported; known is {VERSION}"
            )

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        bits = next((bits for bits in (4, 8) if f"weight_int{bits}" in parts), None)
        if bits is None:
            return {}
        codes = parts.pop(f"weight_int{bits}")
        scales, minima = taken(parts, "weight_scales", codes.name), parts.pop("weight_minima", None)
        if len(codes.shape) != 2 or len(scales.shape) != 2 or not scales.shape[1]:
            raise ValueError(f"{codes.name} and {scales.name} must have two dimensions")
        outputs, inputs = codes.shape[0], codes.shape[1] * 8 // bits
        codes.check(["U8"], codes.shape)
        scales.check(FLOATS, (outputs, scales.shape[1]))
        if inputs % scales.shape[1]:
            raise ValueError(
                f"{scales.name} has {scales.shape[1]} groups, which don't divide {inputs} inputs"
            )
        if minima is not None:
            minima.check(FLOATS, scales.shape)
        used = [part for part in (codes, scales, minima) if part is not None]
        build = partial(_build, codes, scales, minima, bits)
        return {"weight": StoredWeight((outputs, inputs), used, IntegerFormat, build)}


def _build(
    codes: StoredTensor, scales: StoredTensor, minima: StoredTensor | None, bits: int, dtype: torch.dtype
) -> QuantizedFormat:
    for part in (scales, minima):
        if part is not None:
            part.finite()
    lowest = None if minima is None else minima.read()
    return IntegerFormat(codes.read(), scales.read(), lowest, None, bits, dtype)
