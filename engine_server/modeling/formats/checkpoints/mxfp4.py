"""MXFP4 (OCP Microscaling Formats 1.0) as gpt-oss stores its experts.

NAME_blocks: uint8 [experts, out, in / 32, 16], each byte two numbers of 4 bits, the even one in the low half;
NAME_scales: uint8 [experts, out, in / 32], exponents with the bias 127. transformers computes with [experts, in, out].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.modeling.formats.checkpoints.scheme import Scheme, taken
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight
from engine_server.modeling.formats.codecs import E2M1, E8M0
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.stacked import StackedFormat

BLOCK = 32
FORM = Form(E2M1, E8M0, BLOCK)
NAN = 255


class Mxfp4(Scheme):
    """Experts in MXFP4."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        found = {}
        for name in [name for name in parts if name.endswith("_blocks")]:
            blocks = parts.pop(name)
            base = name.removesuffix("_blocks")
            scales = taken(parts, f"{base}_scales", blocks.name)
            blocks.check_dimensions(4)
            experts, outputs, groups, _ = blocks.shape
            blocks.check(["U8"], (experts, outputs, groups, BLOCK // 2))
            scales.check(["U8"], (experts, outputs, groups))
            shape = (experts, groups * BLOCK, outputs)
            found[base] = StoredWeight(shape, (blocks, scales), FORM, partial(_build, blocks, scales))
        return found


def _build(blocks: StoredTensor, scales: StoredTensor, dtype: torch.dtype) -> StackedFormat:
    codes, exponents = blocks.read().flatten(2), scales.read()
    if (exponents == NAN).any():
        raise ValueError(f"{scales.name} contains NaN")
    experts = [GroupedFormat(FORM, own, powers, dtype) for own, powers in zip(codes, exponents, strict=True)]
    return StackedFormat(experts, transposed=True)
