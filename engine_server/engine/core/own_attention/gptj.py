"""GPT-J (Wang and Komatsuzaki, 2021): rope over the first dimensions of a head, in neighbouring pairs."""

from typing import Any

import torch
from torch import Tensor
from transformers.models.gptj.modeling_gptj import GPTJAttention, apply_rotary_pos_emb

from engine_server.engine.core.attention import paged_attention


class PagedGPTJAttention(GPTJAttention):
    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_ids: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        heads = (self.num_attention_heads, self.head_dim)
        query, key, value = (
            project(hidden_states).unflatten(-1, heads) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        sin, cos = self.embed_positions[position_ids].to(query.dtype).chunk(2, -1)
        turned = self.rotary_dim or self.head_dim
        query, key = (
            torch.cat(
                [apply_rotary_pos_emb(tensor[..., :turned], sin, cos), tensor[..., turned:]], -1
            ).transpose(1, 2)
            for tensor in (query, key)
        )
        output, _weights = paged_attention(
            self, query, key, value.transpose(1, 2), attention_mask, self.head_dim**-0.5
        )
        return self.out_proj(output.flatten(2)), None


OURS = GPTJAttention, PagedGPTJAttention
