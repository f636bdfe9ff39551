"""Rotary position embeddings by a kernel with the same results as the model's own function."""

from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet, Rotation


class ChosenRotation:
    """A replacement of an `apply_rotary_pos_emb`: the kernel with the same results, chosen at the first call.

    The choice needs real angles, whose layout differs between models; the passes make the first call on the
    two-layer copy.
    """

    def __init__(self, kernels: KernelSet, original: Rotation) -> None:
        self.rotations = kernels.rotations
        self.original = original
        self.chosen: Rotation | None = None

    def __call__(self, *tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Rotate query and key [1, heads, T, dim]; cos, sin: [1, T, angles]."""
        if options or [tensor.dim() for tensor in tensors] != [4, 4, 3, 3]:
            return self.original(*tensors, **options)
        if self.chosen is None:
            self.chosen = self._choose(*(tensor[..., :16, :] for tensor in tensors))
        return self.chosen(*tensors)

    def _choose(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotation:
        sample = [torch.linspace(-1, 1, part.numel()).to(part).view(part.shape) for part in (query, key)]
        expected = self.original(*sample, cos, sin)
        for rotation in self.rotations(cos.shape[-1], query.shape[-1]):
            if all(map(same, rotation(*sample, cos, sin), expected, (2, 2))):
                return rotation
        return self.original
