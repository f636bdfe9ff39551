"""Rotary embeddings whose factors depend on a length, computed per sequence instead of per batch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine_server.modeling.attention.hook import running_forward
from engine_server.modeling.device.interface import Device
from engine_server.modeling.native.recording import one_operation

# The types of ropes whose factors depend on the longest position of a batch.
STRETCHED = ("longrope", "dynamic")


def is_stretched(rope: Any, layer: str | None = None) -> bool:
    """Return True if the factors of transformers' rope depend on a length.

    layer: the kind of layers, where a rope has a type for each.
    """
    kind = rope.rope_type if layer is None else rope.rope_type[layer]
    if kind != "longrope":
        return kind in STRETCHED
    parameters = rope.config.rope_parameters if layer is None else rope.config.rope_parameters[layer]
    return bool(parameters["long_factor"] != parameters["short_factor"])


class SequenceRope(nn.Module):
    """A rotary embedding whose factors change beyond the trained positions, chosen for each sequence.

    longrope (LongRoPE, ICML '24): one set of factors up to `limit` tokens, another beyond it.
    dynamic: separate factors for each length beyond; a token keeps those of the length at which it was computed.
    """

    def __init__(self, rope: Any, limit: int, device: Device, kind: str | None = None) -> None:
        """rope: transformers' module; limit: the number of trained positions; device: where it runs.

        kind: the type of layers whose rope stretches; None for a rope of all layers.
        """
        super().__init__()
        self.rope = rope
        self.limit = limit
        self._device = device
        self.kind = kind
        self.dynamic = (rope.rope_type if kind is None else rope.rope_type[kind]) == "dynamic"

    def regime(self, num_prompt: int, num_tokens: int) -> int:
        """Return a number that identifies the factors of a sequence's keys: 0 within the trained positions.

        num_prompt: tokens of the prompt; num_tokens: of prompt and output.
        """
        if self.dynamic:
            return max(num_prompt - self.limit, 0)
        return int(num_tokens > self.limit)

    @one_operation
    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines: [1, T, dim]."""
        if layer_type != self.kind:
            cos, sin = self.rope(x, position_ids, layer_type)
            return cos, sin
        inputs = running_forward().inputs
        regimes = np.zeros_like(inputs.lengths) if inputs.regimes is None else inputs.regimes
        lengths = np.repeat(self.limit + regimes, inputs.lengths)
        if self.dynamic:
            lengths = np.maximum(lengths, inputs.positions + 1)
        cached = "max_seq_len_cached" if self.kind is None else f"{self.kind}_max_seq_len_cached"
        kinds = [] if self.kind is None else [self.kind]
        cos = sin = torch.zeros((), dtype=x.dtype, device=x.device)
        for length in np.unique(lengths).tolist():
            own = self._device.to_device(lengths == length)
            last = position_ids.new_full(
                (1, 1), length - 1
            )  # the rope chooses its factors by the longest position
            setattr(self.rope, cached, 0)  # drop a dynamic rope's cache for a longer sequence
            # Before 5.21 transformers fails when it finds the long factors of a rope with a type for each layer.
            vars(self.rope).pop(f"{self.kind}_long_inv_freq", None)
            rotations = self.rope(x, torch.cat([position_ids * own, last], 1), *kinds)
            cos, sin = (
                torch.where(own[:, None], new[:, :-1], old)
                for new, old in zip(rotations, (cos, sin), strict=True)
            )
        return cos, sin


def sequence_rope(model: nn.Module) -> SequenceRope | None:
    """Return one of the model's stretched rotary embeddings, which are all equal, or None."""
    return next((module for module in model.modules() if isinstance(module, SequenceRope)), None)
