"""GPT-Neo."""

from typing import Any

from torch import Tensor, nn
from transformers.models.gpt_neo import modeling_gpt_neo

from engine_server.modeling.attention.hook import paged_attention


class GPTNeoSelfAttention(modeling_gpt_neo.GPTNeoSelfAttention):
    """GPT-Neo (Black et al., 2021): scores without a scale, and windows in some layers."""

    @property
    def layer_idx(self) -> int:
        layer: int = self.layer_id
        return layer

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        window = self.config.window_size if self.attention_type == "local" else None
        output, _weights = paged_attention(
            self, query, key, value, attention_mask, 1.0, sliding_window=window
        )
        return self.out_proj(output.flatten(2)), None


OURS: dict[type[nn.Module], type[nn.Module]] = {modeling_gpt_neo.GPTNeoSelfAttention: GPTNeoSelfAttention}
