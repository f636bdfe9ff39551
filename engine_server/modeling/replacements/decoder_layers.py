"""Decoder layers like Llama's, which add residuals and normalize the sums with one kernel."""

from typing import Any

import torch
from torch import nn

from engine_server.modeling.layers.decoder_layer import CHILDREN, fused_layer, link_layers
from engine_server.modeling.layers.norm import FusedRMSNorm
from engine_server.modeling.replacements.forwards import class_with_forward
from engine_server.modeling.replacements.replacement import Replacement, Setup


def key_of_layer(module: nn.Module, parent: nn.Module) -> type | None:
    """Return the class of a decoder layer with the children of Llama's, and a norm that adds the residual."""
    if (
        module._modules.keys() != CHILDREN
        or not isinstance(module._modules["post_attention_layernorm"], FusedRMSNorm)
        or type(module).forward is fused_layer
    ):
        return None
    return type(module)


def candidate(layer: nn.Module, setup: Setup) -> Any:
    """Return a class with the forward of fused layers."""
    kind = class_with_forward(layer, fused_layer)
    kind.add_residual = torch.add
    return kind


def fuse(layer: Any, kind: Any, setup: Setup) -> tuple[nn.Module, str]:
    """Give a layer the forward of fused layers."""
    layer.__class__ = kind
    return layer, "fused_layer"


def reason(key: type) -> str:
    """Return the reason for which a layer is left."""
    return "computes something else"


def link(model: nn.Module) -> None:
    """Let each fused layer add its last residual by the norm that follows."""
    for module in model.modules():
        link_layers(module)


DECODER_LAYERS = Replacement(
    "decoder layers",
    key_of_layer,
    candidate,
    fuse,
    reason,
    one_by_one=True,
    finish=link,
)
