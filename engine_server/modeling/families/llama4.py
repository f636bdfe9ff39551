"""Modules of Llama 4's text model that compute a flat batch, and of its experts the chosen ones alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.llama4 import modeling_llama4

from engine_server.modeling.attention.hook import paged_attention


class Llama4TextAttention(modeling_llama4.Llama4TextAttention):
    """Attention within chunks with rope, or over all tokens without, whose queries grow with their positions."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        positions: Tensor,
        **_: Any,
    ) -> tuple[Tensor, None]:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in projections
        )
        if self.use_rope:
            cos, sin = position_embeddings
            query, key = apply_rotary_pos_emb(pairs_apart(query), pairs_apart(key), cos, sin)
        if hasattr(self, "qk_norm"):
            query, key = self.qk_norm(query), self.qk_norm(key)
        if self.attn_temperature_tuning and not self.use_rope:
            query = (query * self.temperatures(positions)[:, None, :, None]).to(query.dtype)
        types: list[str] = self.config.layer_types  # type: ignore[assignment]
        chunked = types[self.layer_idx] == "chunked_attention"
        chunk_size = self.config.attention_chunk_size if chunked else None
        output, _weights = paged_attention(
            self, query, key, value, attention_mask, self.scaling, chunk_size=chunk_size
        )
        return self.o_proj(output.flatten(2)), None

    def temperatures(self, positions: Tensor) -> Tensor:
        """Return the factors of queries at positions [1, T], float32 (Nakanishi, 2025, arXiv 2501.19399)."""
        steps = torch.floor((positions.float() + 1) / self.floor_scale)
        temperatures: Tensor = torch.log1p(steps) * self.attn_scale + 1
        return temperatures


def pairs_apart(heads: Tensor) -> Tensor:
    """Return heads [1, heads, T, dim] with the first of each pair of neighbours in the first half, as Llama's are.

    Scores don't depend on the order of dimensions, if that of queries and keys is the same.
    """
    pairs: Tensor = heads.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    return pairs.transpose(-1, -2).flatten(-2)


class Llama4TextRotaryEmbedding(modeling_llama4.Llama4TextRotaryEmbedding):
    """Rope for `pairs_apart`: cosines and sines instead of complex numbers."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, [1, T, dim]."""
        angles = super().forward(x, position_ids)
        cos, sin = angles.real.to(x.dtype), angles.imag.to(x.dtype)
        return torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)


class Llama4TextDecoderLayer(modeling_llama4.Llama4TextDecoderLayer):  # type: ignore[no-untyped-call]
    """A layer that gives its attention the positions."""

    def forward(self, *args: Any, position_ids: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
        states: Tensor = super().forward(*args, positions=position_ids, **options)  # type: ignore[call-arg, assignment]
        return states


class Llama4Router(modeling_llama4.Llama4Router):
    """A router that chooses experts."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [tokens, experts], and weights and experts [tokens, chosen]."""
        logits = F.linear(hidden_states, self.weight, self.bias)
        largest, experts = logits.topk(self.top_k, -1)
        return logits, largest.float().sigmoid().to(logits.dtype), experts


class Llama4TextMoe(modeling_llama4.Llama4TextMoe):
    """A mixture of a shared expert and of chosen ones, whose inputs are weighted."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        states = hidden_states.reshape(-1, self.hidden_dim)
        logits, weights, experts = self.router(states)
        output = self.shared_expert(states)
        for weight, expert in zip(weights.split(1, -1), experts.split(1, -1), strict=True):
            output = output + self.experts(states * weight, expert, torch.ones_like(weight))
        return output, logits


class Llama4TextExperts(modeling_llama4.Llama4TextExperts):
    """Experts as transformers' `use_experts_implementation` describes them."""

    has_gate, has_bias, is_transposed, is_concatenated = True, False, True, True
    # transformers' class has no `is_transposed`, without which PEFT takes the first dimension for that of outputs.
    swapped_in_peft = True

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        """Compute the experts. top_k_index: int64 [tokens, chosen]; top_k_weights: [tokens, chosen]."""
        output = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            tokens, chosen = torch.where(top_k_index == expert)
            gated = self._apply_gate(hidden_states[tokens] @ self.gate_up_proj[expert])
            weights = top_k_weights[tokens, chosen, None]
            output.index_add_(0, tokens, gated @ self.down_proj[expert] * weights)
        return output

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        gated: Tensor = up * self.act_fn(gate)
        return gated


OURS: dict[type[nn.Module], type[nn.Module]] = {
    kind.__bases__[0]: kind
    for kind in (
        Llama4TextAttention,
        Llama4TextRotaryEmbedding,
        Llama4TextDecoderLayer,
        Llama4Router,
        Llama4TextMoe,
        Llama4TextExperts,
    )
}
