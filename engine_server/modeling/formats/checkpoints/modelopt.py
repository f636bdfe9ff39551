"""NVIDIA's ModelOpt: float8 weights with a scale per tensor or output, and NVFP4.

FP8: weight: E4M3 [out, in], weight_scale. NVFP4: weight: uint8 [out, in / 2], weight_scale, weight_scale_2, see
nvfp4.py.
"""

from collections.abc import Mapping
from typing import Any

import torch

from engine_server.contract.base.quoting import quote
from engine_server.modeling.formats.checkpoints.float8 import UNUSED, float8_weights
from engine_server.modeling.formats.checkpoints.nvfp4 import BLOCK, nvfp4_weight
from engine_server.modeling.formats.checkpoints.scheme import Scheme, taken
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight

# The dtype of codes, by algorithm.
CODES = {"FP8": "F8_E4M3", "NVFP4": "U8"}


class ModelOpt(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        algorithm = settings.get("quant_algo")
        if algorithm not in CODES:
            raise ValueError(
                f"ModelOpt's quant_algo {quote(algorithm)} is not supported; known are {', '.join(CODES)}"
            )
        group = settings.get("group_size")
        if algorithm == "NVFP4" and group not in (None, BLOCK):
            raise ValueError(
                f"ModelOpt's NVFP4 with group_size {quote(group)} is not supported; known is {BLOCK}"
            )
        self.algorithm: str = algorithm

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        weight = parts.get("weight")
        if weight is None or weight.dtype not in CODES.values():
            return {}
        if weight.dtype != CODES[self.algorithm]:
            raise ValueError(
                f"{weight.name} is {weight.dtype}; weights in {self.algorithm} are {CODES[self.algorithm]}"
            )
        for name in UNUSED:
            parts.pop(name, None)
        if self.algorithm == "FP8":
            return float8_weights(parts, None)
        del parts["weight"]
        scales, factor = (taken(parts, name, weight.name) for name in ("weight_scale", "weight_scale_2"))
        return {"weight": nvfp4_weight(weight, scales, factor, torch.clone)}
