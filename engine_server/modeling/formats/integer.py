"""Weights of 4 or 8 bits, with a scale and a minimum for each group of inputs."""

from collections.abc import Sequence
from math import gcd
from typing import Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import as_parameter, joined
from engine_server.modeling.formats.quantized import GroupedFormat, cut_bias
from engine_server.modeling.formats.weight_format import Cut


class IntegerFormat(GroupedFormat):
    """Integer weights.

    weight[o, i] = scales[o, i // group] * code[o, i] + minima[o, i // group]. Symmetric weights have no minima; theirs
    are -2 ** (bits - 1) * scales.
    """

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        minima: Tensor | None,
        bias: Tensor | None,
        bits: int,
        dtype: torch.dtype,
    ) -> None:
        """codes: uint8 [out, in], or with 4 bits [out, in / 2], the even input in a byte's low half.

        scales, minima: floating [out, in / group]; dtype: that of the values and the output.
        """
        self.codes, self.scales = as_parameter(codes), as_parameter(scales)
        self.minima = None if minima is None else as_parameter(minima)
        self.bias = None if bias is None else as_parameter(bias)
        self.bits, self.dtype = bits, dtype
        self.group = self.in_features // scales.shape[-1]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), self.in_features))

    @property
    def in_features(self) -> int:
        return self.codes.shape[-1] * 8 // self.bits

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {"weight": self.codes, "scales": self.scales, "minima": self.minima, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        codes, scales, minima, bias = (
            None if tensor is None else tensor.to(device)
            for tensor in (self.codes, self.scales, self.minima, self.bias)
        )
        assert codes is not None and scales is not None
        return type(self)(codes, scales, minima, bias, self.bits, dtype)

    def shard(self, cut: Cut) -> Self:
        """Return one rank's part. Groups that span ranks are split into smaller ones."""
        finer = 1
        if cut.dim == 1:
            width = cut.width(self.in_features)
            finer = self.group // gcd(self.group, width)
            if width % 2 and self.bits == 4:
                raise ValueError(f"{width} inputs of a rank with 4-bit weights are not an even number")
        scales, minima = (
            None if tensor is None else cut.of(tensor.repeat_interleave(finer, -1))
            for tensor in (self.scales, self.minima)
        )
        assert scales is not None
        bias = cut_bias(self.bias, cut)
        return type(self)(cut.of(self.codes), scales, minima, bias, self.bits, self.dtype)

    @property
    def kind(self) -> tuple[object, ...]:
        return *super().kind, self.bits, self.minima is None, self.scales.dtype

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        codes, scales = (torch.cat([getattr(one, name) for one in formats]) for name in ("codes", "scales"))
        minima, bias = (joined([getattr(one, name) for one in formats]) for name in ("minima", "bias"))
        return cls(codes, scales, minima, bias, formats[0].bits, formats[0].dtype)

    def gather(self, rows: Tensor) -> Tensor:
        minima = None if self.minima is None else self.minima[rows]
        return dequantised(self.codes[rows], self.scales[rows], minima, self.bits).to(self.dtype)

    def dense(self) -> Tensor:
        return dequantised(self.codes, self.scales, self.minima, self.bits).to(self.dtype)


def dequantised(codes: Tensor, scales: Tensor, minima: Tensor | None, bits: int) -> Tensor:
    """Return weights in float32, [..., in]; codes, scales and minima as in `IntegerFormat`."""
    whole = split_codes(codes) if bits == 4 else codes
    grouped = whole.view(*whole.shape[:-1], scales.shape[-1], -1).float()
    scale = scales.float().unsqueeze(-1)
    minimum = -(1 << bits - 1) * scale if minima is None else minima.float().unsqueeze(-1)
    return torch.addcmul(minimum, grouped, scale).flatten(-2)


def packed_codes(codes: Tensor) -> Tensor:
    """Return two 4-bit codes in each byte, as `IntegerFormat` has them: uint8 [..., in] to [..., in / 2]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def split_codes(codes: Tensor) -> Tensor:
    """Return each 4-bit code in a byte of its own: uint8 [..., in / 2] to [..., in]."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
