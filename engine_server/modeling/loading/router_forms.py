"""The forms of a model's routers, found on random weights and tokens, and the pass that fuses them."""

from collections.abc import Mapping
from copy import copy
from inspect import signature

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.weight_format import WeightLayout, as_loaded
from engine_server.modeling.layers.fused_router import RouterForm, fuse_router
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import Choose
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.loading.report import PassReport, Tally

TOKENS = 5  # of the sample on which a class is compared with ours


def fuse_routers(
    model: nn.Module, choose: Choose | None, forms: Mapping[type, RouterForm], layout: WeightLayout
) -> PassReport:
    """Make the routers whose classes have a form choose experts by a kernel. layout: that of their weights."""
    tally = Tally("routers")
    for module in model.modules():
        form = forms.get(original_class(module))
        if form is not None:
            assert choose is not None
            tally.replaced(original_class(module), "FusedRouter", original_class(module))
            fuse_router(module, form, choose, layout)
    return tally.report()


@torch.inference_mode()
def form_of(module: nn.Module, choose: Choose, device: torch.device) -> RouterForm | None:
    """Return the form with which FusedRouter computes the same as a module, or None."""
    if not is_router(module):
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
        module._parameters.keys() in ({"weight"}, {"weight", "bias"})
        and module.get_parameter("weight").ndim == 2
        and isinstance(getattr(module, "top_k", None), int)
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
