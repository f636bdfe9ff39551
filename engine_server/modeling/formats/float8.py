"""Weights of 8 bits with an exponent (E4M3), with a scale for each group of inputs."""

from collections.abc import Sequence
from math import gcd
from typing import Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import as_parameter, joined
from engine_server.modeling.formats.quantized import GroupedFormat, cut_bias
from engine_server.modeling.formats.weight_format import Cut


class Float8Format(GroupedFormat):
    """float8 weights: weight[o, i] = scales[o, i // group] * codes[o, i]. The last group may be smaller."""

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None, group: int, dtype: torch.dtype
    ) -> None:
        """codes: float8_e4m3fn [out, in]; scales: float32 [out, in / group, rounded up]."""
        self.codes, self.scales = as_parameter(codes), as_parameter(scales)
        self.bias = None if bias is None else as_parameter(bias)
        self.group, self.dtype = group, dtype

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {"weight": self.codes, "scales": self.scales, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        bias = None if self.bias is None else self.bias.to(device)
        return type(self)(self.codes.to(device), self.scales.to(device), bias, self.group, dtype)

    def shard(self, cut: Cut) -> Self:
        """Return one rank's part. Groups that span ranks are split into smaller ones."""
        scales, group = self.scales.detach(), self.group
        if cut.dim == 1:
            group = gcd(self.group, cut.width(self.shape[1]))
            scales = scales.repeat_interleave(self.group // group, -1)[:, : self.shape[1] // group]
        codes = cut.of(self.codes.view(torch.uint8)).view(self.codes.dtype)  # torch selects no float8
        return type(self)(codes, cut.of(scales), cut_bias(self.bias, cut), group, self.dtype)

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        first = formats[0]
        codes = torch.cat([one.codes.view(torch.uint8) for one in formats]).view(first.codes.dtype)
        scales, bias = torch.cat([one.scales for one in formats]), joined([one.bias for one in formats])
        return cls(codes, scales, bias, first.group, first.dtype)

    def dense(self) -> Tensor:
        scales = self.scales.repeat_interleave(self.group, -1)[:, : self.shape[1]]
        return (self.codes.float() * scales).to(self.dtype)

    def gather(self, rows: Tensor) -> Tensor:
        scales = self.scales[rows].repeat_interleave(self.group, -1)[..., : self.shape[1]]
        return (self.codes.view(torch.uint8)[rows].view(self.codes.dtype).float() * scales).to(self.dtype)
