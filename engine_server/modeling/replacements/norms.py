"""RMSNorms, with weights or without."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.norm import FusedRMSNorm, UnweightedRMSNorm
from engine_server.modeling.replacements.replacement import Replacement, Setup

# The attributes that norms use for their eps.
EPS = ("variance_epsilon", "eps")
# Dimensions of the sample for a norm without weights.
UNWEIGHTED = 32


def key_of_norm(module: nn.Module, parent: nn.Module) -> tuple[type, bool] | None:
    """Return the class of an RMSNorm, and True if it has weights, as not all of its class need to have."""
    if is_norm(module):
        return type(module), True
    return (type(module), False) if is_unweighted_norm(module) else None


def is_norm(module: nn.Module) -> bool:
    """Return True if a module has the parts of an RMSNorm: one weight of one dimension, an eps, and one input."""
    return not isinstance(module, FusedRMSNorm) and has_parts_of_norm(module, {"weight"})


def is_unweighted_norm(module: nn.Module) -> bool:
    """Return True if a module has the parts of an RMSNorm but for its weight."""
    return not isinstance(module, FusedRMSNorm) and has_parts_of_norm(module, set())


def has_parts_of_norm(module: nn.Module, names: set[str]) -> bool:
    """Return True if a module has these parameters, of one dimension, an eps, and one input."""
    parameters = dict(module.named_parameters())
    return (
        parameters.keys() == names
        and all(parameter.dim() == 1 for parameter in parameters.values())
        and any(isinstance(getattr(module, name, None), float) for name in EPS)
        and len(signature(module.forward).parameters) == 1
    )


@torch.inference_mode()
def offset_of(norm: nn.Module, setup: Setup) -> float | None:
    """Return the offset with which FusedRMSNorm computes the same as `norm`, or None; 0 for one without weights."""
    kernels = setup.kernels
    if is_unweighted_norm(norm):
        sample = rows_of(torch.ones(UNWEIGHTED, device=setup.device))
        return 0.0 if same(UnweightedRMSNorm(kernels, eps_of(norm))(sample), norm(sample), 0) else None
    weight, sample = norm.get_parameter("weight"), sample_rows(norm)
    expected = norm(sample)
    for offset in kernels.offsets:
        if same(FusedRMSNorm(kernels, weight, eps_of(norm), offset)(sample), expected, 0):
            return offset
    return None


def sample_rows(norm: nn.Module) -> Tensor:
    """Return rows with a mean other than 0, which a LayerNorm removes, one of them so small that eps matters."""
    return rows_of(norm.get_parameter("weight"))


def rows_of(weight: Tensor) -> Tensor:
    """Return the rows of `sample_rows` for a norm with this weight."""
    rows = torch.linspace(-1, 2, len(weight)) * torch.tensor([1e-3, 1, 30])[:, None]
    return rows[None].to(weight)


def eps_of(norm: nn.Module) -> float:
    """Return a norm's eps."""
    return next(value for name in EPS if isinstance(value := getattr(norm, name, None), float))


def fuse(norm: nn.Module, offset: float, setup: Setup) -> tuple[nn.Module, str]:
    """Return our norm with the parameters of `norm`."""
    if is_unweighted_norm(norm):
        return UnweightedRMSNorm(setup.kernels, eps_of(norm)), "UnweightedRMSNorm"
    return FusedRMSNorm(setup.kernels, norm.get_parameter("weight"), eps_of(norm), offset), "FusedRMSNorm"


def reason(key: tuple[type, bool]) -> Any:
    """Return the reason for which a norm with weights is left; many other modules look like one without."""
    return "computes something else" if key[1] else None


NORMS = Replacement("norms", key_of_norm, offset_of, fuse, reason)
