"""GPT-J, and CodeGen with its rope."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.codegen import modeling_codegen
from transformers.models.gptj import modeling_gptj

from engine_server.modeling.attention.hook import paged_attention


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


OURS: dict[type[nn.Module], type[nn.Module]] = {
    modeling_codegen.CodeGenAttention: CodeGenAttention,
    modeling_gptj.GPTJAttention: GPTJAttention,
}
