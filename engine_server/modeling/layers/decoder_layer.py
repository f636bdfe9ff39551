"""Decoder layers like Llama's, with one kernel for each sum of a residual and the norm that follows."""

from typing import Any

from torch import Tensor, nn

from engine_server.modeling.layers.norm import FusedRMSNorm

# The children of such a layer.
CHILDREN = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


def fused_layer(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """Compute the forward of `layer`: [1, T, hidden] to [1, T, hidden]."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    total, normed = layer.post_attention_layernorm.add(attended, hidden_states)
    output: Tensor = layer.add_residual(layer.mlp(normed), total)
    return output


def link_layers(parent: nn.Module) -> None:
    """Let each fused layer among a module's lists of layers add its last residual by the norm that follows.

    That is the next layer's input norm, or the module's only own norm after the last layer. Without one torch adds.
    """
    own = [child for child in parent.children() if isinstance(child, FusedRMSNorm)]
    last = own[0] if len(own) == 1 else None
    for stack in parent.children():
        if not isinstance(stack, nn.ModuleList):
            continue
        following = [*(getattr(layer, "input_layernorm", None) for layer in stack[1:]), last]
        layers: list[Any] = list(stack)
        for layer, norm in zip(layers, following, strict=True):
            if type(layer).forward is fused_layer and isinstance(norm, FusedRMSNorm):
                layer.add_residual = norm.add_ahead
