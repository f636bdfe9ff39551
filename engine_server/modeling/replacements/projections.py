"""The pass that fuses linear layers of one input: fewer and larger products, and one read of the input."""

from collections.abc import Sequence
from typing import TypeGuard

from torch import nn

from engine_server.modeling.layers.linear import FusedLinear, Linear
from engine_server.modeling.layers.sharding import Columns
from engine_server.modeling.replacements.report import PassReport, Tally

# The projections of one attention layer's input, by the names that models use.
PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))


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
