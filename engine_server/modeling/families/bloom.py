"""BLOOM."""

from typing import Any

from torch import Tensor, nn
from transformers.models.bloom import modeling_bloom

from engine_server.modeling.attention.hook import paged_attention
from engine_server.modeling.families.alibi import slopes


class BloomAttention(modeling_bloom.BloomAttention):
    """BLOOM (Le Scao et al., 2022)."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, residual: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> tuple[Tensor, None]:
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        alibi = slopes(modeling_bloom.build_alibi_tensor, self.num_heads, 1.0, query.device)
        scale = self.inv_norm_factor
        output, _weights = paged_attention(self, query, key, value, attention_mask, scale, alibi=alibi)
        return residual + self.dense(output.flatten(2)), None


OURS: dict[type[nn.Module], type[nn.Module]] = {modeling_bloom.BloomAttention: BloomAttention}
