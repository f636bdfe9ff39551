"""BLOOM (Le Scao et al., 2022): fused projections, and ALiBi (Press et al., ICLR '22) for positions."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

from engine_server.engine.core.attention import paged_attention


@cache
def slopes(heads: int, device: torch.device) -> Tensor:
    """[heads], shared by all layers, so that they share their masks too."""
    bias: Tensor = build_alibi_tensor(torch.ones(1, 2, device=device), heads, torch.float32)
    return bias[:, 0, 1]


class PagedBloomAttention(BloomAttention):
    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, residual: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> tuple[Tensor, None]:
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        alibi = slopes(self.num_heads, query.device)
        output, _weights = paged_attention(
            self, query, key, value, attention_mask, self.inv_norm_factor, alibi=alibi
        )
        return residual + self.dense(output.flatten(2)), None


OURS = BloomAttention, PagedBloomAttention
