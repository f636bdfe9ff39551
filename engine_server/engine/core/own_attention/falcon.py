"""Falcon (Almazrouei et al., 2023): one fused projection for many, few or one KV head; rope or ALiBi."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.models.falcon.modeling_falcon import (
    FalconAttention,
    apply_rotary_pos_emb,
    build_alibi_tensor,
)

from engine_server.engine.core.attention import paged_attention


@cache
def slopes(heads: int, head_dim: int, device: torch.device) -> Tensor:
    """[heads], rounded as in training and scaled as the scores are; shared by all layers, as their masks are then."""
    bias: Tensor = build_alibi_tensor(torch.ones(1, 2, device=device), heads, torch.float32)
    return bias[:, 0, 1].mul(head_dim**-0.5)


class PagedFalconAttention(FalconAttention):
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor],
        **_: Any,
    ) -> tuple[Tensor, None]:
        grouped = self.new_decoder_architecture or self.multi_query
        kv_heads = self.num_kv_heads if grouped else self.num_heads
        fused = self.query_key_value(hidden_states).unflatten(-1, (kv_heads, -1, self.head_dim))
        query, key, value = fused[..., :-2, :].flatten(2, 3), fused[..., -2, :], fused[..., -1, :]
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        if alibi is None:
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)  # type: ignore[no-untyped-call]
        else:
            alibi = slopes(self.num_heads, self.head_dim, query.device)
        output, _weights = paged_attention(
            self, query, key, value, attention_mask, self.inv_norm_factor, alibi=alibi
        )
        return self.dense(output.flatten(2)), None


OURS = FalconAttention, PagedFalconAttention
