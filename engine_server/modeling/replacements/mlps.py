"""Gated MLPs, whose gate and up become one product."""

from typing import Any

from torch import nn

from engine_server.modeling.layers.gated_mlp import GatedMLP
from engine_server.modeling.replacements.projections import alike
from engine_server.modeling.replacements.replacement import Replacement, Setup

CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def key_of_mlp(module: nn.Module, parent: nn.Module) -> tuple[type, bool] | None:
    """Return the class of a module with the children of a gated MLP, and True if it can be fused."""
    if module._modules.keys() != CHILDREN or isinstance(module, GatedMLP):
        return None
    return type(module), can_be_fused(module)


def can_be_fused(mlp: nn.Module) -> bool:
    """Return True if gate and up can be one product."""
    return alike([mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")])


def candidate(mlp: nn.Module, setup: Setup) -> type | None:
    """Return GatedMLP for an MLP that can be fused."""
    return GatedMLP if can_be_fused(mlp) else None


def fuse(mlp: nn.Module, version: Any, setup: Setup) -> tuple[nn.Module, str]:
    """Return a GatedMLP with the children of an MLP."""
    return GatedMLP(mlp), "GatedMLP"


def reason(key: tuple[type, bool]) -> str:
    """Return the reason for which an MLP is left."""
    return "computes something else" if key[1] else "projections of different kinds"


MLPS = Replacement("fuse gate and up", key_of_mlp, candidate, fuse, reason, one_by_one=True)
