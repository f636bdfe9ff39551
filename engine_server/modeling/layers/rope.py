"""Ropes that look at the longest position, made to look at each token's own sequence: no neighbour changes a result."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine_server.modeling.attention.hook import running_forward

STRETCHED = ("longrope", "dynamic")


class SequenceRope(nn.Module):
    """Stands in for a rotary embedding of transformers whose factors change beyond the trained positions.

    longrope (LongRoPE, ICML '24): one set of factors within `limit` tokens, another beyond.
    dynamic: factors for each length beyond; a token keeps those of the length at which it was computed.
    """

    def __init__(self, rope: Any, limit: int) -> None:
        super().__init__()
        self.rope = rope  # caches by the longest length that it has met, where it is dynamic
        self.limit = limit
        self.dynamic = rope.rope_type == "dynamic"

    def regime(self, num_prompt: int, num_tokens: int) -> int:
        """What a sequence's keys depend on besides its tokens; 0 within the trained positions.

        num_prompt: tokens of the prompt; num_tokens: of prompt and output.
        """
        if self.dynamic:
            return max(num_prompt - self.limit, 0)
        return int(num_tokens > self.limit)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [1, T, dim]."""
        inputs = running_forward().inputs
        regimes = np.zeros_like(inputs.lengths) if inputs.regimes is None else inputs.regimes
        lengths = np.repeat(self.limit + regimes, inputs.lengths)
        if self.dynamic:
            lengths = np.maximum(lengths, inputs.positions + 1)
        cos = sin = torch.zeros((), dtype=x.dtype, device=x.device)
        for length in np.unique(lengths).tolist():
            own = torch.from_numpy(lengths == length).to(x.device)
            last = position_ids.new_full((1, 1), length - 1)  # by which the rope chooses its factors
            self.rope.max_seq_len_cached = 0  # a longer sequence before this one is forgotten
            turned = self.rope(x, torch.cat([position_ids * own, last], 1))
            cos, sin = (
                torch.where(own[:, None], new[:, :-1], old)
                for new, old in zip(turned, (cos, sin), strict=True)
            )
        return cos, sin


def per_sequence(model: nn.Module) -> SequenceRope | None:
    """Replace the model's ropes that need it; they are all alike."""
    found = None
    children = [(parent, *child) for parent in model.modules() for child in parent.named_children()]
    for parent, name, child in children:
        rope: Any = child
        if getattr(rope, "rope_type", None) in STRETCHED:
            trained = rope.config.rope_parameters.get("original_max_position_embeddings")
            found = SequenceRope(rope, trained or rope.config.max_position_embeddings)
            setattr(parent, name, found)
    return found
