"""GPTQ (Frantar et al., arXiv 2210.17323), as AutoGPTQ and GPTQModel store it.

qweight: int32 [in * bits / 32, out], packed along the inputs; qzeros: int32 [groups, out * bits / 32], the zero points,
less 1 in the older form; scales: [groups, out]; g_idx: int32 [in], each input's group.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.modeling.formats.checkpoints.codes import WORD, integer_form, integer_format, unpacked
from engine_server.modeling.formats.checkpoints.scheme import Scheme, check_group, taken
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.quantized import QuantizedFormat

BITS = (2, 3, 4, 8)


class Gptq(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("bits") not in BITS:
            raise ValueError(
                f"GPTQ with {settings.get('bits')} bits is not supported; known are 2, 3, 4 and 8"
            )
        self.bits: int = settings["bits"]
        self.group = settings.get("group_size")
        form = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
        if form not in ("gptq", "gptq_v2"):
            raise ValueError(f"the GPTQ form {form} is not supported; known are gptq and gptq_v2")
        self.offset = 1 if form == "gptq" else 0

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        if "qweight" not in parts:
            return {}
        codes = parts.pop("qweight")
        zeros, scales = (taken(parts, name, codes.name) for name in ("qzeros", "scales"))
        codes.check_dimensions(2)
        scales.check_dimensions(2)
        groups = parts.pop("g_idx", None)
        inputs, outputs = codes.shape[0] * WORD // self.bits, codes.shape[1]
        codes.check(["I32"], (inputs * self.bits // WORD, outputs))
        scales.check(FLOATS, (scales.shape[0], outputs))
        zeros.check(["I32"], (scales.shape[0], outputs * self.bits // WORD))
        if not scales.shape[0] or inputs % scales.shape[0]:
            raise ValueError(
                f"{scales.name} has {scales.shape[0]} groups, which don't divide {inputs} inputs"
            )
        check_group(self.group, inputs, scales, scales.shape[0])
        if groups is not None:
            groups.check(["I32", "I64"], (inputs,))
        used = [part for part in (codes, zeros, scales, groups) if part is not None]
        build = partial(self._build, codes, zeros, scales, groups)
        form = integer_form(self.bits, inputs // scales.shape[0])
        return {"weight": StoredWeight((outputs, inputs), used, form, build)}

    def _build(
        self,
        codes: StoredTensor,
        zeros: StoredTensor,
        scales: StoredTensor,
        groups: StoredTensor | None,
        dtype: torch.dtype,
    ) -> QuantizedFormat:
        return integer_format(
            unpacked(codes.read().t(), self.bits),
            scales.finite().t(),
            (unpacked(zeros.read(), self.bits).short() + self.offset).t(),  # 255 is followed by 256
            self.bits,
            None if groups is None else groups.read(),
            dtype,
        )
