"""Gates of MLPs and experts: act(gate) * up."""

from typing import Any

import torch
from torch import nn

from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import Gate
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.replacements.replacement import Replacement, Setup


def key_of_gate(module: nn.Module, parent: nn.Module) -> tuple[type, type] | None:
    """Return the classes that define a module's gate, its own and that of its activation, if it has one."""
    if not callable(getattr(module, "_apply_gate", None)):
        return None
    return original_class(module), type(getattr(module, "act_fn", None))


@torch.inference_mode()
def kernel_of_gate(module: Any, setup: Setup) -> Gate | None:
    """Return the kernel that computes the same as a module's gate, or None."""
    sample = torch.linspace(-20, 20, 400, device=setup.device).view(2, -1)
    expected = module._apply_gate(sample)
    for gate in setup.kernels.gates:
        if same(gate(sample.clone()), expected, 1):
            return gate
    return None


def set_gate(module: Any, gate: Gate, setup: Setup) -> tuple[nn.Module, str]:
    """Make a module compute its gate by a kernel."""
    module._apply_gate = gate
    return module, "a gate kernel"


def reason(key: tuple[type, type]) -> str:
    """Return the reason for which a gate is left."""
    return f"{key[1].__name__} has no kernel"


GATES = Replacement("gates", key_of_gate, kernel_of_gate, set_gate, reason)
