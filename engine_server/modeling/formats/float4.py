"""Weights of 4 bits with an exponent (E2M1), with a power of two for each group of inputs, as in MXFP4."""

from collections.abc import Sequence
from math import gcd
from typing import Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import as_parameter, joined
from engine_server.modeling.formats.integer import split_codes
from engine_server.modeling.formats.quantized import GroupedFormat, cut_bias
from engine_server.modeling.formats.weight_format import Cut

# The numbers of the codes 0 to 7. Codes from 8 on are these numbers negated.
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The exponent of 2 ** 0 as it is stored.
BIAS = 127


class Float4Format(GroupedFormat):
    """float4 weights: weight[o, i] = 2 ** (exponents[o, i // group] - 127) * number(code[o, i])."""

    def __init__(self, codes: Tensor, exponents: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """codes: uint8 [out, in / 2], the even input in a byte's low half; exponents: uint8 [out, in / group]."""
        self.codes, self.exponents = as_parameter(codes), as_parameter(exponents)
        self.bias = None if bias is None else as_parameter(bias)
        self.group, self.dtype = self.shape[1] // exponents.shape[1], dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), 2 * self.codes.shape[1]))

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {"weight": self.codes, "exponents": self.exponents, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        bias = None if self.bias is None else self.bias.to(device)
        return type(self)(self.codes.to(device), self.exponents.to(device), bias, dtype)

    def shard(self, cut: Cut) -> Self:
        """Return one rank's part. Groups that span ranks are split into smaller ones."""
        exponents: Tensor = self.exponents
        if cut.dim == 1:
            width = cut.width(self.shape[1])
            if width % 2:
                raise ValueError(f"{width} inputs of a rank with 4-bit weights are not an even number")
            exponents = exponents.repeat_interleave(self.group // gcd(self.group, width), 1)
        return type(self)(cut.of(self.codes), cut.of(exponents), cut_bias(self.bias, cut), self.dtype)

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        codes, exponents = (
            torch.cat([getattr(one, name) for one in formats]) for name in ("codes", "exponents")
        )
        return cls(codes, exponents, joined([one.bias for one in formats]), formats[0].dtype)

    def dense(self) -> Tensor:
        return self._dequantised(self.codes, self.exponents)

    def gather(self, rows: Tensor) -> Tensor:
        return self._dequantised(self.codes[rows], self.exponents[rows])

    def _dequantised(self, codes: Tensor, exponents: Tensor) -> Tensor:
        """Return weights [..., in] of codes [..., in / 2] and exponents [..., in / group]."""
        numbers = torch.tensor((*NUMBERS, *(-number for number in NUMBERS)), device=codes.device)
        groups = numbers[split_codes(codes).int()].view(*exponents.shape, self.group)
        return torch.ldexp(groups, exponents.int().unsqueeze(-1) - BIAS).flatten(-2).to(self.dtype)
