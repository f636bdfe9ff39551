"""Small random models for comparisons with transformers, before and after the passes."""

from typing import Any

import torch
import transformers

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.loader.passes import LoadPlan, replace_modules, verified_choices
from engine_server.modeling.loader.weights import settle
from engine_server.modeling.platform.interface import Platform

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


def tiny_model(model: str, **settings: Any) -> transformers.PreTrainedModel:
    """Return a model of transformers with our attention, the same one each time."""
    torch.manual_seed(0)
    kind = getattr(transformers, model)
    made = kind._from_config(kind.config_class(**settings), attn_implementation=IMPLEMENTATION).eval()
    for name, weight in made.named_parameters():
        if "norm" in name:  # otherwise all 1, or 0
            weight.data.uniform_(0.5, 1.5)
    return made


def run_passes(model: transformers.PreTrainedModel, platform: Platform) -> None:
    """Run the passes over a model whose weights are loaded."""
    replace_modules(model, LoadPlan(platform, Communicator(), False, verified_choices(model, platform)))
    settle(model)
