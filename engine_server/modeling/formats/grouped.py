"""Quantised weights of codes, with a scale for each group of inputs."""

from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.codecs import E4M3, Codec
from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.weight_format import Cut, Weight, WeightFormat


class Form(NamedTuple):
    """What is known of a weight before it is read, by which its product is chosen."""

    codes: Codec
    scales: Codec
    # Number of inputs that share a scale. The last group may be smaller.
    group: int

    def __str__(self) -> str:
        return f"{self.codes} with scales in {self.scales} for {self.group} inputs"


class GroupedFormat(QuantizedFormat, Weight):
    """A weight [out, in] of codes.

    weight[o, i] = factors[o] * scales[o, i // group] * codes[o, i] + minima[o, i // group]. Without minima, that of
    integers is the negated scale times their codec's zero.
    """

    def __init__(
        self,
        form: Form,
        codes: Tensor,
        scales: Tensor,
        dtype: torch.dtype,
        *,
        minima: Tensor | None = None,
        factors: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """codes: uint8 [out, in * bits / 8]; scales: [out, groups], floating or uint8, as their codec takes them.

        minima: floating [out, groups]; factors: float32 [out, 1], of scales in E4M3 and of no others; bias: [out];
        dtype: that of the values and outputs.
        """
        assert (factors is not None) == (form.scales is E4M3)
        self.form, self.dtype = form, dtype
        self.codes, self.scales = as_parameter(codes), as_parameter(scales)
        self.minima, self.factors, self.bias = (
            None if tensor is None else as_parameter(tensor) for tensor in (minima, factors, bias)
        )

    @classmethod
    def of(cls, form: Form, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Self:
        """Return a weight of tensors by the names that `parameters` has for them."""
        given = dict(tensors)
        return cls(form, given.pop("weight"), given.pop("scales"), dtype, **given)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), self.codes.shape[1] * 8 // self.form.codes.bits))

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {
            "weight": self.codes, "scales": self.scales, "minima": self.minima, "factors": self.factors,
            "bias": self.bias,
        }  # fmt: skip
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return self.of(
            self.form, {name: tensor.to(device) for name, tensor in self.parameters().items()}, dtype
        )

    def shard(self, cut: Cut) -> Self:
        """Return one rank's part. Groups that span ranks are split into smaller ones."""
        parts: dict[str, Tensor] = {name: tensor.detach() for name, tensor in self.parameters().items()}
        if cut.dim == 0:
            return self.of(self.form, {name: cut.of(tensor) for name, tensor in parts.items()}, self.dtype)
        width, bits = cut.width(self.shape[1]), self.form.codes.bits
        if width * bits % 8:
            raise ValueError(f"{width} inputs of a rank with {bits}-bit weights are not an even number")
        group = gcd(self.form.group, width)
        for name in parts.keys() & {"scales", "minima"}:
            finer = parts[name].repeat_interleave(self.form.group // group, 1)
            parts[name] = cut.of(finer[:, : self.shape[1] // group])
        parts["weight"] = cut.of(self.codes)
        if cut.piece:
            parts.pop("bias", None)
        return self.of(self.form._replace(group=group), parts, self.dtype)

    def can_join(self, other: WeightFormat) -> bool:
        return isinstance(other, GroupedFormat) and self._kind == other._kind

    @property
    def _kind(self) -> tuple[object, ...]:
        """Properties that weights have in common if they can be joined."""
        return self.form, self.dtype, self.scales.dtype, self.parameters().keys()

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        first = formats[0]
        tensors = {
            name: torch.cat([one.parameters()[name] for one in formats]) for name in first.parameters()
        }
        return cls.of(first.form, tensors, first.dtype)

    def dense(self) -> Tensor:
        return self._dequantised(self.codes, self.scales, self.minima, self.factors)

    def gather(self, rows: Tensor) -> Tensor:
        return self._dequantised(
            self.codes[rows],
            self.scales[rows],
            None if self.minima is None else self.minima[rows],
            None if self.factors is None else self.factors[rows],
        )

    def _dequantised(
        self, codes: Tensor, scales: Tensor, minima: Tensor | None, factors: Tensor | None
    ) -> Tensor:
        """Return weights [..., in] of parts of the tensors, each [..., n]."""
        numbers = self.form.codes.decoded(codes)
        inputs, group = numbers.shape[-1], self.form.group
        missing = scales.shape[-1] * group - inputs
        whole = F.pad(numbers, (0, missing)) if missing else numbers
        groups = whole.view(*scales.shape, group)
        scale = self.form.scales.decoded(scales).unsqueeze(-1)
        if minima is not None:
            groups = torch.addcmul(minima.float().unsqueeze(-1), groups, scale)
        elif self.form.codes.zero:
            groups = torch.addcmul(-self.form.codes.zero * scale, groups, scale)
        else:
            groups = groups * scale
        weights = groups.flatten(-2)[..., :inputs]
        return (weights if factors is None else weights * factors).to(self.dtype).contiguous()
