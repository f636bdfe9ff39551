"""Norms by kernels: RMSNorm, which also adds the residual, and LayerNorm."""

import torch
from torch import Tensor, nn

from engine_server.modeling.attention.hook import running_forward
from engine_server.modeling.layers.ahead import Ahead
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet


class FusedRMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), [..., dim] to [..., dim].

    offset: added to the weight: 1 if a model's weights are around 0.
    """

    def __init__(self, kernels: KernelSet, weight: Tensor, eps: float, offset: float) -> None:
        super().__init__()
        self.kernel = kernels.rms_norm
        self.weight = weight
        self.eps = eps
        self.offset = offset
        # The norm of a sum of `add_ahead`, until `forward` takes it.
        self._normed = Ahead[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        ready = self._normed.get(x)
        self._normed.forget()
        return self.add(x)[1] if ready is None else ready

    def add(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return x + residual and its norm."""
        return self.kernel(x, self.weight, self.eps, self.offset, residual)

    def add_ahead(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return x + residual, whose norm the next call of `forward` returns if it is given this very sum."""
        total, normed = self.add(x, residual)
        self._normed.put(total, normed)
        return total


class UnweightedRMSNorm(FusedRMSNorm):
    """RMSNorm without a weight. Only its input shows how many dims it has."""

    def __init__(self, kernels: KernelSet, eps: float) -> None:
        super().__init__(kernels, torch.empty(0), eps, 0.0)

    def add(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if len(self.weight) != x.shape[-1]:
            self.weight = x.new_ones(x.shape[-1])
        return super().add(x, residual)


class HeadNorm(FusedRMSNorm):
    """The norm of each head of queries or keys, left to attention, which computes it with their rotation."""

    # The part of PendingHeads that it is.
    part: str

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        running_forward().defer(**{self.part: self})
        return x


class FusedLayerNorm(nn.Module):
    """Layer normalization (Ba, Kiros and Hinton 2016, arXiv 1607.06450), [..., dim] to [..., dim]."""

    def __init__(
        self, kernels: KernelSet, weight: nn.Parameter, bias: nn.Parameter | None, eps: float
    ) -> None:
        super().__init__()
        assert kernels.layer_norm is not None
        self.kernel = kernels.layer_norm
        self.weight, self.bias = weight, bias
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.bias, self.eps)
