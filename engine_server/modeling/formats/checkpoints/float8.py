"""float8 weights with scales per tensor, output or block.

DeepSeek and Qwen publish `weight` and, for each block of 128 outputs and 128 inputs, `weight_scale_inv`, which
multiplies despite its name. FBGEMM and compressed-tensors have `weight_scale` per tensor, output or block.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.modeling.formats.checkpoints.scheme import Scheme
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.codecs import E4M3, FLOAT
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat

SCALES = ("weight_scale_inv", "weight_scale")
# Scales of activations, which are computed here instead.
UNUSED = ("input_scale", "input_scale_ub", "input_global_scale", "activation_scale")


class Float8(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.block = settings.get("weight_block_size")
        if self.block is not None and not (len(self.block) == 2 and all(size > 0 for size in self.block)):
            raise ValueError(f"weight_block_size is {self.block}; expected are two numbers")

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        return float8_weights(parts, self.block)


def float8_weights(parts: dict[str, StoredTensor], block: list[int] | None) -> dict[str, StoredWeight]:
    """Take a module's float8 weight out of `parts`; block: outputs and inputs that share a scale."""
    found = next((name for name in SCALES if name in parts), None)
    weight = parts.get("weight")
    if weight is None or (found is None and not weight.dtype.startswith("F8")):
        return {}
    if found is None:
        raise ValueError(f"{weight.name} has no {' or '.join(SCALES)} beside it")
    scales = parts.pop(found)
    del parts["weight"]
    for name in UNUSED:
        parts.pop(name, None)
    weight.check_dimensions(2)
    outputs, inputs = weight.shape
    weight.check(["F8_E4M3"], (outputs, inputs))
    sizes = (1, 1) if block is None else (-(-outputs // block[0]), -(-inputs // block[1]))
    shapes: list[tuple[int, ...]] = [sizes]
    if block is None:
        shapes += [(), (1,), (outputs,), (outputs, 1)]
    if scales.dtype not in FLOATS or scales.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"{scales.name} is {scales.dtype} {list(scales.shape)}; expected is a float of {expected}"
        )
    form = Form(E4M3, FLOAT, inputs if block is None else block[1])
    build = partial(_build, weight, scales, form, None if block is None else block[0])
    return {"weight": StoredWeight(weight.shape, (weight, scales), form, build)}


def _build(
    weight: StoredTensor, scales: StoredTensor, form: Form, rows: int | None, dtype: torch.dtype
) -> QuantizedFormat:
    """rows: outputs that share scales; None: all do, or none."""
    outputs, factors = weight.shape[0], scales.finite()
    if rows is None:
        factors = factors.view(-1, 1).expand(outputs, 1).contiguous()
    else:
        factors = factors.repeat_interleave(rows, 0)[:outputs]
    return GroupedFormat(form, weight.read().view(torch.uint8), factors, dtype)
