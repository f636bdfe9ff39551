"""The pass that fuses linear layers of one input: fewer and larger products, and one read of the input."""

from collections.abc import Sequence
from typing import TypeGuard

from torch import nn

from engine_server.modeling.layers.gated_mlp import GatedMLP
from engine_server.modeling.layers.linear import FusedLinear, Linear
from engine_server.modeling.layers.sharding import Columns
from engine_server.modeling.loading.report import PassReport, Tally

# The projections of one attention layer's input, by the names that models use.
PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
GATED_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def fuse_projections(model: nn.Module) -> PassReport:
    """Fuse the query, key and value projections of every attention layer."""
    tally = Tally("fuse query, key and value")
    for parent in list(model.modules()):
        for names in PROJECTIONS:
            found = [child for name in names if (child := parent._modules.get(name)) is not None]
            if len(found) < len(names):
                continue
            if alike(found):
                FusedLinear(found)
                tally.replaced(type(parent), "FusedLinear")
            else:
                tally.left(type(parent), "projections of different kinds")
    return tally.report()


def fuse_mlps(model: nn.Module, verified: frozenset[type]) -> PassReport:
    """Replace gated MLPs whose classes are `verified` to compute the same as GatedMLP."""
    tally = Tally("fuse gate and up")
    for parent in list(model.modules()):
        for name, mlp in list(parent.named_children()):
            if not is_gated_mlp(mlp):
                continue
            if type(mlp) not in verified:
                tally.left(type(mlp), "computes something else")
            elif not alike([mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")]):
                tally.left(type(mlp), "projections of different kinds")
            else:
                tally.replaced(type(mlp), "GatedMLP", type(mlp))
                setattr(parent, name, GatedMLP(mlp))
    return tally.report()


def is_gated_mlp(module: nn.Module) -> bool:
    """Return True if a module has the children of a gated MLP."""
    return module._modules.keys() == GATED_MLP and not isinstance(module, GatedMLP)


def alike(linears: Sequence[nn.Module]) -> TypeGuard[Sequence[Linear]]:
    """Return True for linear layers that differ in their number of outputs only."""
    kinds = {
        (one.in_features, one.bias is None, one.weight.dtype, one.transposed)
        for one in linears
        if isinstance(one, Linear) and (one.sharding is None or isinstance(one.sharding, Columns))
    }
    return len(kinds) == 1 and all(
        isinstance(one, Linear) and (one.sharding is None or isinstance(one.sharding, Columns))
        for one in linears
    )
