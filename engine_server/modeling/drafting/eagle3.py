"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840): a decoder layer over tokens and three of the target's hidden states."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from engine_server.modeling.drafting.draft_head import DraftHead

# States of the target that are joined.
NUM_AUXILIARY = 3


class Eagle3Layer(nn.Module):
    """Llama's decoder layer with attention over the embedding of a token beside a hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = self.self_attn.get_submodule(name)
            assert isinstance(narrow, nn.Linear)
            wide = nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.norm_before_residual = config.norm_before_residual

    def forward(
        self, embeds: Tensor, hidden: Tensor, position_ids: Tensor, rotations: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return [1, T, hidden] of embeddings and states [1, T, hidden]."""
        normed = self.hidden_norm(hidden)
        joined = torch.cat([self.input_layernorm(embeds), normed], -1)
        attended, _ = self.self_attn(joined, rotations, None, position_ids=position_ids)
        total = (normed if self.norm_before_residual else hidden) + attended
        states: Tensor = total + self.mlp(self.post_attention_layernorm(total))
        return states


class Eagle3Model(LlamaPreTrainedModel):  # type: ignore[no-untyped-call]
    """The weights of an EAGLE-3 head, with the names of its published files.

    config: with `draft_vocab_size`, `target_hidden_size`, `norm_before_residual` and `has_embedding`.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if config.has_embedding else None
        self.fc = nn.Linear(NUM_AUXILIARY * config.target_hidden_size, hidden, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module | None:  # type: ignore[override]
        return self.embed_tokens

    def forward(self, embeds: Tensor, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """Return the states [1, T, hidden] before the last norm."""
        rotations = self.rotary_emb(hidden, position_ids)
        states: Tensor = self.midlayer(embeds, hidden, position_ids, rotations)
        return states


class Eagle3Head(DraftHead):
    """An EAGLE-3 head bound to its target.

    The states of its chain are those before the last norm. It proposes the tokens of its own, smaller vocabulary.
    """

    module: Eagle3Model

    def __init__(
        self, module: Eagle3Model, target: PreTrainedModel, aux_layers: tuple[int, ...], tokens: Tensor | None
    ) -> None:
        """tokens: int64 [draft vocabulary], the target's token for each of the head's; None: they are the same."""
        super().__init__(module, target, module.embed_tokens or target.get_input_embeddings())
        module.midlayer.self_attn.layer_idx = self.layer
        self.aux_layers = aux_layers
        self._tokens = tokens
        self._vocabulary = module.config.vocab_size

    def prepare(self, states: Tensor, auxiliary: Sequence[Tensor]) -> Tensor:
        prepared: Tensor = self.module.fc(torch.cat([*auxiliary], -1))
        return prepared

    def states(self, token_ids: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        embeds = self._embedding(token_ids[None])
        states: Tensor = self.module(embeds, hidden[None], positions[None])[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        own: Tensor = self.module.lm_head(self.module.norm(states))
        if self._tokens is None:
            return own
        return own.new_full((len(own), self._vocabulary), -torch.inf).index_copy_(1, self._tokens, own)
