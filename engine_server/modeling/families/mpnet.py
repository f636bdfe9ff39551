"""MPNet."""

from typing import Any

from torch import Tensor, nn
from transformers.models.mpnet import modeling_mpnet

from engine_server.modeling.attention.hook import paged_attention, running_forward


class MPNetAttention(modeling_mpnet.MPNetSelfAttention):
    """MPNet (Song et al., NeurIPS '20), whose layers share a bias by distance, as T5's do."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_bias: Tensor, **_: Any
    ) -> tuple[Tensor]:
        heads = (self.num_attention_heads, self.attention_head_size)
        query, key, value = (
            project(hidden_states).unflatten(-1, heads).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        output, _weights = paged_attention(
            self, query, key, value, attention_mask, is_causal=False, relative_bias=position_bias
        )
        return (self.o(output.flatten(2)),)


class MPNetEncoder(modeling_mpnet.MPNetEncoder):
    """MPNet's encoder with a bias as wide as the step's longest sequence instead of the whole step."""

    def compute_position_bias(self, x: Tensor) -> Tensor:  # type: ignore[override]
        longest = int(running_forward().inputs.lengths.max())
        bias: Tensor = super().compute_position_bias(x[:, :longest])  # type: ignore[no-untyped-call]
        return bias


OURS: dict[type[nn.Module], type[nn.Module]] = {
    modeling_mpnet.MPNetSelfAttention: MPNetAttention,
    modeling_mpnet.MPNetEncoder: MPNetEncoder,
}
