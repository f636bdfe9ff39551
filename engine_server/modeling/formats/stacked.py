"""Quantised weights of experts, stacked as transformers stacks dense ones."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.joined import JoinedFormat, join
from engine_server.modeling.formats.quantized import QuantizedFormat


class StackedFormat(QuantizedFormat):
    """One quantised weight for each expert, without biases.

    Their stack is [experts, out, in], or [experts, in, out] where `transposed`, as some classes have it.
    """

    bias = None

    def __init__(self, experts: Sequence[QuantizedFormat], transposed: bool = False) -> None:
        """experts: weights of one shape, [out, in]."""
        self.experts = list(experts)
        self.transposed = transposed
        self.dtype = experts[0].dtype

    @property
    def shape(self) -> torch.Size:
        outputs, inputs = self.experts[0].shape
        return torch.Size((len(self.experts), *((inputs, outputs) if self.transposed else (outputs, inputs))))

    def parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{name}_{number}": tensor
            for number, expert in enumerate(self.experts)
            for name, tensor in expert.parameters().items()
        }

    def dense(self) -> Tensor:
        device = self.experts[0].parameters()["weight"].device
        whole = torch.empty(self.shape, dtype=self.dtype, device=device)
        for number, expert in enumerate(self.experts):  # one at a time, since they take far more than codes
            whole[number] = expert.dense().t() if self.transposed else expert.dense()
        return whole

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)([expert.to(device, dtype) for expert in self.experts], self.transposed)

    def apply(self, values: Tensor) -> Tensor:
        """Return the product of each expert: [experts, ..., in] to [experts, ..., out]."""
        return torch.stack([expert.apply(own) for expert, own in zip(self.experts, values, strict=True)])

    @classmethod
    def joined(cls, stacks: Sequence["StackedFormat"]) -> Self | None:
        """Return stacks with the outputs of each expert concatenated; None if their formats don't allow it."""
        if any(stack.transposed for stack in stacks):
            return None
        experts = []
        for parts in zip(*(stack.experts for stack in stacks), strict=True):
            whole = join(parts)
            if isinstance(whole, JoinedFormat):
                return None
            assert isinstance(whole, QuantizedFormat)
            experts.append(whole)
        return cls(experts)
