"""Rotary position embeddings by a kernel with the same results as the model's own function."""

from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from engine_server.modeling.attention.hook import running_forward
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import DeferrableRotation, KernelSet, Rotation


class ChosenRotation:
    """A replacement of an `apply_rotary_pos_emb`: the kernel with the same results, chosen at the first call.

    The choice needs real angles, whose layout differs between models; the passes make the first call on the
    two-layer copy.
    """

    def __init__(self, kernels: KernelSet, original: Rotation) -> None:
        self.rotations = kernels.rotations
        self.original = original
        self.chosen: Rotation | None = None
        # Attention computes the rotation.
        self.deferred = False

    @property
    def deferrable(self) -> bool:
        """True if attention can compute the chosen rotation."""
        return isinstance(self.chosen, DeferrableRotation)

    def deferring(self) -> Self:
        """Return the same rotation, left to attention: results of queries and keys are as they were given."""
        own = copy(self)
        own.deferred = True
        return own

    def __call__(self, *tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Rotate query and key [1, heads, T, dim]; cos, sin: [1, T, angles]."""
        if options or [tensor.dim() for tensor in tensors] != [4, 4, 3, 3]:
            return self.original(*tensors, **options)
        if self.chosen is None:
            self.chosen = self._choose(*(tensor[..., :16, :] for tensor in tensors))
        if self.deferred:
            assert isinstance(self.chosen, DeferrableRotation)
            query, key, *angles = tensors
            running_forward().defer(rotation=self.chosen.pending(*angles))
            return query, key
        return self.chosen(*tensors)

    def _choose(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotation:
        sample = [torch.linspace(-1, 1, part.numel()).to(part).view(part.shape) for part in (query, key)]
        expected = self.original(*sample, cos, sin)
        for rotation in self.rotations(cos.shape[-1], query.shape[-1]):
            if all(map(same, rotation(*sample, cos, sin), expected, (2, 2))):
                return rotation
        return self.original
