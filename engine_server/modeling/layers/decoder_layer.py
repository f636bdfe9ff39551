"""Decoder layers like Llama's, with one kernel for adding the residual and the norm that follows."""

from typing import Any

from torch import Tensor

# The children of such a layer.
CHILDREN = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


def fused_layer(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """Compute the forward of `layer`: [1, T, hidden] to [1, T, hidden]."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    total, normed = layer.post_attention_layernorm.add(attended, hidden_states)
    output: Tensor = total + layer.mlp(normed)
    return output
