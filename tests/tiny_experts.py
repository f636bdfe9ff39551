"""Small random mixtures of experts, and the inputs of their experts."""

from typing import Any

import pytest
import torch
import transformers
from tiny_models import TINY
from torch import Tensor

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.experts import has_experts
from engine_server.modeling.layers.gated_experts import GatedExperts
from engine_server.modeling.layers.kernel_sets.plain import CPU
from engine_server.modeling.replacements import experts as kind
from engine_server.modeling.replacements.replacement import Setup

HIDDEN, INNER, EXPERTS, CHOSEN, TOKENS = 64, 32, 4, 2, 7
COUNTS = {"num_experts_per_tok": CHOSEN, "num_local_experts": EXPERTS, "moe_intermediate_size": INNER}
KINDS = {
    "Mixtral": COUNTS,
    "Qwen3Moe": COUNTS | {"num_experts": EXPERTS},
    "GptOss": COUNTS | {"head_dim": 16},
}
by_kind = pytest.mark.parametrize("kind", KINDS)


def tiny(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    sizes = TINY | {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": 64, "pad_token_id": 0}
    model_class: Any = getattr(transformers, f"{kind}ForCausalLM")
    model = model_class._from_config(model_class.config_class(**sizes | KINDS[kind]), dtype=dtype)
    return model.eval().requires_grad_(False)


def experts_of(model: Any) -> Any:
    """Return the first layer's experts, with weights and biases of a size that matters."""
    experts = next(module for module in model.modules() if has_experts(module))
    torch.manual_seed(1)
    for parameter in experts._parameters.values():
        # Drawn in float32, so that they are the same in every dtype.
        parameter.copy_(torch.empty(parameter.shape).normal_(0.0, 0.25))
    return experts


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, and the choices and weights of a router."""
    generator = torch.Generator().manual_seed(3)
    weights, index = torch.rand(TOKENS, EXPERTS, generator=generator).topk(CHOSEN)
    return torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype), index, weights.to(dtype)


def replace_experts(model: Any, own: type[GatedExperts]) -> None:
    """Make all experts of a model compute by our class `own`."""
    versions = {site.key: own for site in kind.EXPERTS.sites(model)}
    kind.EXPERTS.apply(model, versions, Setup(CPU, torch.device("cpu"), as_loaded))
