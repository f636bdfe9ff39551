"""Falcon."""

from typing import Any

from torch import Tensor, nn
from transformers.models.falcon import modeling_falcon

from engine_server.modeling.attention.hook import paged_attention
from engine_server.modeling.families.alibi import slopes


class FalconAttention(modeling_falcon.FalconAttention):
    """Falcon (Almazrouei et al., 2023): one projection for as many KV heads as query heads, a few, or one."""

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
        scale = self.inv_norm_factor
        if alibi is None:
            query, key = modeling_falcon.apply_rotary_pos_emb(query, key, *position_embeddings)  # type: ignore[no-untyped-call]
        else:
            alibi = slopes(modeling_falcon.build_alibi_tensor, self.num_heads, scale, query.device)
        output, _weights = paged_attention(self, query, key, value, attention_mask, scale, alibi=alibi)
        return self.dense(output.flatten(2)), None


OURS: dict[type[nn.Module], type[nn.Module]] = {modeling_falcon.FalconAttention: FalconAttention}
