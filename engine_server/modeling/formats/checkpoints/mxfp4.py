"""MXFP4 (OCP Microscaling Formats 1.0) as gpt-oss stores its experts.

NAME_blocks: uint8 [experts, out, in / 32, 16], each byte two numbers of 4 bits, the even one in the low half;
NAME_scales: uint8 [experts, out, in / 32], exponents with the bias 127. transformers computes with [experts, in, out].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.formats.checkpoints.scheme import Scheme, taken
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight

BLOCK = 32
NUMBERS = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
BIAS, NAN = 127, 255


class Mxfp4(Scheme):
    """Experts in MXFP4, which are dequantised."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        found = {}
        for name in [name for name in parts if name.endswith("_blocks")]:
            blocks = parts.pop(name)
            base = name.removesuffix("_blocks")
            scales = taken(parts, f"{base}_scales", blocks.name)
            if len(blocks.shape) != 4:
                raise ValueError(
                    f"{blocks.name} has the shape {list(blocks.shape)}; expected are four dimensions"
                )
            experts, outputs, groups, _ = blocks.shape
            blocks.check(["U8"], (experts, outputs, groups, BLOCK // 2))
            scales.check(["U8"], (experts, outputs, groups))
            shape = (experts, groups * BLOCK, outputs)
            found[base] = StoredWeight(shape, (blocks, scales), None, partial(_build, blocks, scales))
        return found


def _build(blocks: StoredTensor, scales: StoredTensor, dtype: torch.dtype) -> Tensor:
    codes, exponents = blocks.read(), scales.read()
    if (exponents == NAN).any():
        raise ValueError(f"{scales.name} contains NaN")
    numbers = torch.tensor((*NUMBERS, *(-number for number in NUMBERS)))
    experts, outputs, groups, _ = codes.shape
    dense = torch.empty(experts, groups * BLOCK, outputs, dtype=dtype)
    for expert in range(experts):  # one after another: float32 numbers take eight times the memory of codes
        own = codes[expert].int()
        whole = numbers[torch.stack((own & 15, own >> 4), -1).flatten(-2)]
        scale = exponents[expert].int().unsqueeze(-1) - BIAS
        dense[expert] = torch.ldexp(whole, scale).flatten(-2).t()
    return dense
