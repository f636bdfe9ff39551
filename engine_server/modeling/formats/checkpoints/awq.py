"""AWQ (Lin et al., arXiv 2306.00978), as AutoAWQ stores it for its GEMM kernels.

qweight: int32 [in, out / 8] and qzeros: int32 [groups, out / 8], packed along the outputs in the order of `ORDER`;
scales: [groups, out].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.formats.checkpoints.codes import WORD, integer_form, integer_format, unpacked
from engine_server.modeling.formats.checkpoints.scheme import Scheme, check_group, taken
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.quantized import QuantizedFormat

BITS = 4
# The place of each of 8 outputs among the codes of a word.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


class Awq(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        bits = settings.get("bits", settings.get("w_bit"))
        if bits != BITS:
            raise ValueError(f"AWQ with {bits} bits is not supported; known is 4")
        self.group = settings.get("group_size", settings.get("q_group_size"))
        form = str(settings.get("version") or settings.get("format") or "gemm").lower()
        if settings.get("backend") == "llm-awq":
            form = "llm-awq"
        if form != "gemm":
            raise ValueError(f"the AWQ form {form} is not supported; known is gemm")

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        if "qweight" not in parts:
            return {}
        codes = parts.pop("qweight")
        zeros, scales = (taken(parts, name, codes.name) for name in ("qzeros", "scales"))
        codes.check_dimensions(2)
        scales.check_dimensions(2)
        inputs, outputs = codes.shape[0], codes.shape[1] * WORD // BITS
        codes.check(["I32"], (inputs, outputs * BITS // WORD))
        scales.check(FLOATS, (scales.shape[0], outputs))
        zeros.check(["I32"], (scales.shape[0], codes.shape[1]))
        if not scales.shape[0] or inputs % scales.shape[0]:
            raise ValueError(
                f"{scales.name} has {scales.shape[0]} groups, which don't divide {inputs} inputs"
            )
        check_group(self.group, inputs, scales, scales.shape[0])
        build = partial(self._build, codes, zeros, scales)
        form = integer_form(BITS, inputs // scales.shape[0])
        return {"weight": StoredWeight((outputs, inputs), (codes, zeros, scales), form, build)}

    def _build(
        self, codes: StoredTensor, zeros: StoredTensor, scales: StoredTensor, dtype: torch.dtype
    ) -> QuantizedFormat:
        return integer_format(
            in_order(codes.read()).t().contiguous(),
            scales.finite().t(),
            in_order(zeros.read()).t(),
            BITS,
            None,
            dtype,
        )


def in_order(words: Tensor) -> Tensor:
    """Return codes in the order of the outputs: int32 [n, out / 8] to uint8 [n, out]."""
    codes = unpacked(words, BITS)
    return codes.view(len(codes), -1, len(ORDER))[..., ORDER].flatten(-2)
