"""Routers of mixtures, whose form is found on random weights and tokens."""

from copy import copy
from inspect import signature

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.fused_router import RouterForm, fuse_router
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.replacements.replacement import Replacement, Setup

TOKENS = 5  # of the sample on which a class is compared with ours


def key_of_router(module: nn.Module, parent: nn.Module) -> type | None:
    """Return the class that transformers gave a router."""
    return original_class(module) if is_router(module) else None


@torch.inference_mode()
def form_of(module: nn.Module, setup: Setup) -> RouterForm | None:
    """Return the form with which FusedRouter computes the same as a router, or None."""
    choose, device = setup.kernels.choose, setup.device
    if choose is None:
        return None
    try:
        dtype = sample(module, device, torch.bfloat16)[1].dtype
        _, weights, index = sample(module, device, torch.float32)
        for normalised in (True, False):
            form = RouterForm(normalised, None if dtype == torch.bfloat16 else dtype)
            fused = copy(module)
            fuse_router(fused, form, choose, as_loaded)
            _, own_weights, own_index = sample(fused, device, torch.float32)
            if same(own_weights, weights, 1) and torch.equal(own_index, index):
                return form
    except misfits():  # most are of a module with other inputs or results
        pass
    return None


def is_router(module: nn.Module) -> bool:
    """Return True if a module has the parts of a router: a weight, maybe a bias, a number of choices, and one input."""
    return (
        isinstance(getattr(module, "top_k", None), int)
        and module._parameters.keys() in ({"weight"}, {"weight", "bias"})
        and module.get_parameter("weight").ndim == 2
        and len(signature(module.forward).parameters) == 1
    )


def sample(module: nn.Module, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of a router for random weights and tokens: logits, weights and choices."""
    generator = torch.Generator().manual_seed(0)
    own = copy(module)
    own._parameters = {
        name: nn.Parameter(torch.randn(one.shape, generator=generator).to(device, dtype), requires_grad=False)
        for name, one in module._parameters.items()
        if one is not None
    }
    inputs = module.get_parameter("weight").shape[1]
    rows = torch.randn(TOKENS, inputs, generator=generator).to(device, dtype) / inputs**0.5
    logits, weights, index = own(rows)
    return logits, weights, index


def fuse(module: nn.Module, form: RouterForm, setup: Setup) -> tuple[nn.Module, str]:
    """Make a router choose experts by a kernel."""
    assert setup.kernels.choose is not None
    fuse_router(module, form, setup.kernels.choose, setup.layout)
    return module, "FusedRouter"


ROUTERS = Replacement("routers", key_of_router, form_of, fuse)
