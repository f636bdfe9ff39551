"""Small random models that are compared with transformers."""

from typing import Any

import torch
import transformers

from engine_server.modeling.attention.interface import IMPLEMENTATION
from engine_server.modeling.loading.fusion import fuse_linears

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}


def fused(model: str, **settings: Any) -> transformers.PreTrainedModel:
    """Return a model with fused linears and our attention; its weights are the same in every call."""
    torch.manual_seed(0)
    kind = getattr(transformers, model)
    made = kind._from_config(kind.config_class(**settings), attn_implementation=IMPLEMENTATION).eval()
    for name, weight in made.named_parameters():
        if "norm" in name:  # which would all be 1, or 0
            weight.data.uniform_(0.5, 1.5)
    fuse_linears(list(made.modules()))
    return made
