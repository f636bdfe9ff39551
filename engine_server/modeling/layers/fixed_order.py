"""The check of modules without weights that results are bitwise independent of batch composition on a CPU.

Torch computes the last elements of a tensor by another exponential than whole vectors, so a row's activations depend on
its place in the batch. Additions, products and cosines have the same bits everywhere.
"""

from torch import nn

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.layers.activation import Activation
from engine_server.modeling.layers.gated_mlp import GatedMLP
from engine_server.modeling.layers.kernel_sets.native import gelu_tanh_and_mul, silu_and_mul
from engine_server.modeling.layers.norm import FusedLayerNorm, FusedRMSNorm
from engine_server.modeling.layers.rope import SequenceRope
from engine_server.modeling.layers.rope_table import ROPE
from engine_server.modeling.native.library import VECTOR

# Modules that compute each element exactly, or not at all.
ELEMENTWISE = (nn.Dropout, nn.Identity, nn.ReLU, Activation, SequenceRope)


def check_rows(model: nn.Module) -> None:
    """Raise UnsupportedModelError for modules that plain torch computes, with an exponential or a sum."""
    gated = [module for module in model.modules() if isinstance(module, GatedMLP) and has_kernel(module)]
    computed = {id(module.act_fn) for module in gated}
    for module in model.modules():
        if isinstance(module, FusedRMSNorm | FusedLayerNorm) and module.weight.shape[-1] % VECTOR:
            refuse(module, model, f"its rows are no multiple of {VECTOR} elements")
        is_leaf = not list(module.children()) and not list(module.parameters(recurse=False))
        if is_leaf and id(module) not in computed and not is_elementwise(module):
            refuse(module, model, "plain torch computes it")


def has_kernel(mlp: GatedMLP) -> bool:
    """Return True if our kernel computes the gate of an MLP."""
    return mlp._apply_gate in (silu_and_mul, gelu_tanh_and_mul) and mlp.gate_up.sizes[0] % VECTOR == 0


def is_elementwise(module: nn.Module) -> bool:
    """Return True for modules without weights whose results for a token have the same bits in every batch."""
    return isinstance(module, ELEMENTWISE) or type(module).__name__.endswith(ROPE) or not computes(module)


def computes(module: nn.Module) -> bool:
    """Return False for our layers, whose weights come later, and for containers."""
    return not isinstance(module, nn.ModuleList) and not hasattr(module, "format")


def refuse(module: nn.Module, model: nn.Module, reason: str) -> None:
    """Raise UnsupportedModelError."""
    raise UnsupportedModelError(
        f"batch_invariant: the rounding of {type(module).__name__} of {type(model).__name__} is unknown on a CPU: "
        f"{reason}"
    )
