"""Attention of the architectures whose modules don't call transformers' attention interface."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bloom import modeling_bloom
from transformers.models.codegen import modeling_codegen
from transformers.models.falcon import modeling_falcon
from transformers.models.gpt_neo import modeling_gpt_neo
from transformers.models.gptj import modeling_gptj
from transformers.models.mpnet import modeling_mpnet

from engine_server.modeling.attention.hook import paged_attention, running_forward


@cache
def slopes(build: Callable[..., Tensor], heads: int, scale: float, device: torch.device) -> Tensor:
    """Return ALiBi's slopes [heads] (Press et al., ICLR '22): one tensor for all layers, which then share masks."""
    return build(torch.ones(1, 2, device=device), heads, torch.float32)[:, 0, 1] * scale


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


class GPTJAttention(modeling_gptj.GPTJAttention):
    """GPT-J (Wang and Komatsuzaki, 2021): rope over the first dimensions of a head, in neighbouring pairs."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_ids: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        heads = (self.num_attention_heads, self.head_dim)
        query, key, value = (project(hidden_states).unflatten(-1, heads) for project in projections)
        return attend_in_pairs(self, query, key, value, attention_mask, position_ids)


class CodeGenAttention(modeling_codegen.CodeGenAttention):
    """CodeGen (Nijkamp et al., ICLR '23): GPT-J's rope, and one projection in four parts."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_ids: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        parts = self.qkv_proj(hidden_states).unflatten(-1, (4, 3, -1, self.head_dim))
        query, value, key = (parts[..., one, :, :].flatten(2, 3) for one in range(3))
        return attend_in_pairs(self, query, key, value, attention_mask, position_ids)


def attend_in_pairs(
    module: GPTJAttention | CodeGenAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    position_ids: Tensor,
) -> tuple[Tensor, None]:
    """Attend with GPT-J's rope; query, key and value are [1, T, heads, dim]. Return what the module's forward does."""

    def turn(tensor: Tensor) -> Tensor:
        turned = modeling_gptj.apply_rotary_pos_emb(tensor[..., :width], sin, cos)
        return torch.cat([turned, tensor[..., width:]], -1)

    width = module.rotary_dim or module.head_dim
    sin, cos = F.embedding(position_ids, module.embed_positions).to(query.dtype).chunk(2, -1)
    query, key, value = (tensor.transpose(1, 2) for tensor in (turn(query), turn(key), value))
    output, _weights = paged_attention(module, query, key, value, mask, module.head_dim**-0.5)
    return module.out_proj(output.flatten(2)), None


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


# The replacement of each of transformers' classes; it has the same attributes.
OURS: dict[type[nn.Module], type[nn.Module]] = {
    modeling_bloom.BloomAttention: BloomAttention,
    modeling_falcon.FalconAttention: FalconAttention,
    modeling_codegen.CodeGenAttention: CodeGenAttention,
    modeling_gpt_neo.GPTNeoSelfAttention: GPTNeoSelfAttention,
    modeling_gptj.GPTJAttention: GPTJAttention,
    modeling_mpnet.MPNetSelfAttention: MPNetAttention,
    modeling_mpnet.MPNetEncoder: MPNetEncoder,
}
