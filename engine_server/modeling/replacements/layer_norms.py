"""Layer norms, where a kernel is faster than torch's."""

from typing import Any

import torch
from torch import nn

from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.norm import FusedLayerNorm, FusedRMSNorm
from engine_server.modeling.replacements.norms import eps_of, has_parts_of_norm, sample_rows
from engine_server.modeling.replacements.replacement import Replacement, Setup


def key_of_layer_norm(module: nn.Module, parent: nn.Module) -> type | None:
    """Return the class of a module with the parts of a layer norm: those of an RMSNorm, and maybe a bias."""
    has_parts = has_parts_of_norm(module, {"weight"}) or has_parts_of_norm(module, {"weight", "bias"})
    return type(module) if has_parts and not isinstance(module, FusedRMSNorm | FusedLayerNorm) else None


@torch.inference_mode()
def layer_norm_like(norm: nn.Module, setup: Setup) -> type[FusedLayerNorm] | None:
    """Return FusedLayerNorm if it computes the same as `norm`, or None."""
    if setup.kernels.layer_norm is None:
        return None
    sample = sample_rows(norm)
    try:
        expected = norm(sample)
    except misfits():
        return None  # of images, whose channels are not last
    fused, _ = fuse(norm, FusedLayerNorm, setup)
    return FusedLayerNorm if same(fused(sample), expected, 1) else None


def fuse(norm: nn.Module, version: Any, setup: Setup) -> tuple[nn.Module, str]:
    """Return a FusedLayerNorm with the parameters of `norm`."""
    weight, bias = norm.get_parameter("weight"), norm._parameters.get("bias")
    return FusedLayerNorm(setup.kernels, weight, bias, eps_of(norm)), "FusedLayerNorm"


LAYER_NORMS = Replacement("layer norms", key_of_layer_norm, layer_norm_like, fuse)
