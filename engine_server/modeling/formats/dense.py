"""Dense weights, as in checkpoints in float32, bfloat16 or float16."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.weight_format import Cut, Weight, WeightFormat


class DenseFormat(Weight):
    """One tensor, and a bias if there is one. weight: [out, in], or of experts [experts, ..., ...]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = as_parameter(weight)
        self.bias = None if bias is None else as_parameter(bias)

    def parameters(self) -> dict[str, nn.Parameter]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def shard(self, cut: Cut) -> Self:
        bias = self.bias
        if bias is not None:
            outputs_are_cut = cut.dim % self.weight.ndim == 0
            bias = cut.of(bias) if outputs_are_cut else bias if cut.piece == 0 else None  # type: ignore[assignment]
        return type(self)(cut.of(self.weight), bias)

    def can_join(self, other: WeightFormat) -> bool:
        return type(self) is type(other)

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        return cls(torch.cat([one.weight for one in formats]), joined([one.bias for one in formats]))

    def apply(self, values: Tensor) -> Tensor:
        return F.linear(values, self.weight, self.bias)

    def gather(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.weight)


def as_parameter(tensor: Tensor) -> nn.Parameter:
    """Return `tensor` itself if it is a parameter: layers that share one keep sharing it."""
    if isinstance(tensor, nn.Parameter):
        tensor.requires_grad_(False)
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=False)


def joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return tensors one after another along their first dimension; None if there are none."""
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(given) if given else None
