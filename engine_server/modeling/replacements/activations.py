"""Activations that no kernel of a gate includes."""

from inspect import signature
from typing import Any

import torch
from torch import nn

from engine_server.modeling.layers.activation import Activation
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import Activation as ActivationKernel
from engine_server.modeling.replacements.replacement import Replacement, Setup

# The modules whose classes are activations.
ACTIVATIONS_OF = ("torch.nn.modules.activation", "transformers.activations")
# Activations that models define themselves.
OWN_ACTIVATIONS = ("BloomGelu",)


def key_of_activation(module: nn.Module, parent: nn.Module) -> tuple[type, str] | None:
    """Return the class and the settings of an activation, which has no parameters, and one input."""
    if (
        "_apply_gate" in vars(parent)
        or not (type(module).__module__ in ACTIVATIONS_OF or type(module).__name__ in OWN_ACTIVATIONS)
        or list(module.parameters())
        or len(signature(module.forward).parameters) != 1
    ):
        return None
    return type(module), module.extra_repr()


@torch.inference_mode()
def kernel_of_activation(module: Any, setup: Setup) -> ActivationKernel | None:
    """Return the kernel that computes the same as a module, or None."""
    sample = torch.linspace(-20, 20, 401, device=setup.device)
    expected = module(sample.clone())
    for activation in setup.kernels.activations:
        if same(activation(sample), expected, 1):
            return activation
    return None


def activate(module: nn.Module, kernel: ActivationKernel, setup: Setup) -> tuple[nn.Module, str]:
    """Return a module that computes a kernel."""
    return Activation(kernel), "Activation"


def reason(key: tuple[type, str]) -> str:
    """Return the reason for which an activation is left."""
    return "no kernel computes it"


ACTIVATIONS = Replacement("activations", key_of_activation, kernel_of_activation, activate, reason)
