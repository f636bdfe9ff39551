"""Routers of mixtures whose weight adapters may change."""

from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine_server.modeling.formats.low_rank import AddLowRank, LowRankPair, LowRankTable, StepSlots
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.weight_layer import WeightLayer, derived_class, original_class
from engine_server.modeling.native.library import as_rows

# Tokens of the sample on which an updated router is compared with one that has the merged weight.
TOKENS = 4
# The largest magnitude of the sample's logits, which neither softmax nor a sigmoid makes equal.
LARGEST = 4.0


class AdaptedRouter(WeightLayer):
    """A router [tokens, hidden] to logits or choices, with updates of its logits by each token's adapter.

    The forward is that of the router's own class.
    """

    # No weight is received: the router is loaded.
    deferred = True
    step_slots: StepSlots
    add_low_rank: AddLowRank
    updates: LowRankTable

    def forward(self, *given: Any) -> Any:
        if self.step_slots.rows is None:
            return super().forward(*given)
        with UpdatedProduct(self.get_parameter("weight").shape, self.add_update):
            return super().forward(*given)

    def add_update(self, logits: Tensor, values: Tensor) -> None:
        """Add to the logits [tokens, experts] of values [tokens, hidden] the updates, in the dtype of the model."""
        slots, (a, b, ranks) = self.step_slots.rows, self.updates.tensors
        assert slots is not None
        own = logits if logits.dtype == a.dtype else torch.zeros_like(logits, dtype=a.dtype)
        self.add_low_rank(own, as_rows(values.to(a.dtype)), slots, a, b, ranks)
        if own is not logits:
            logits += own


class UpdatedProduct(TorchFunctionMode):
    """A context in which products with a weight of a shape are updated."""

    def __init__(self, shape: torch.Size, update: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._shape = shape
        self._update = update

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is F.linear and args[1].shape == self._shape:
            self._update(result, args[0])
        return result


def adapt_router(module: nn.Module, updates: LowRankTable, slots: StepSlots, add: AddLowRank) -> None:
    """Make a router add the updates in a table to its logits."""
    module.__class__ = derived_class((AdaptedRouter, type(module)), original_class(module))
    assert isinstance(module, AdaptedRouter)
    module.updates, module.step_slots, module.add_low_rank = updates, slots, add
    module.tables = updates.tensors


@torch.inference_mode()
def takes_updates(module: nn.Module, add: AddLowRank) -> bool:
    """Return True for a router that computes with an update what it computes with the merged weight, on a sample.

    The sample's logits lie so far apart that no rounding changes a choice.
    """
    if not may_be_router(module):
        return False
    weight = module.get_parameter("weight")
    if weight.is_meta:
        return False  # it has no values to compare
    experts, hidden = weight.shape
    values = torch.eye(TOKENS, hidden, device=weight.device)
    generator = torch.Generator().manual_seed(0)
    logits = torch.linspace(-LARGEST, LARGEST, experts)
    logits = torch.stack([logits[torch.randperm(experts, generator=generator)] for _ in values])
    table, slots = LowRankTable(hidden, experts, 1, TOKENS, torch.float32, weight.device), StepSlots()
    table.put(0, [LowRankPair(values, logits)])
    slots.rows = torch.zeros(TOKENS, dtype=torch.int32, device=weight.device)
    merged, updated = copy(module), copy(module)
    for one in (merged, updated):  # in float32, a bias too
        one._parameters = {
            name: nn.Parameter(torch.zeros_like(parameter, dtype=torch.float32), requires_grad=False)
            for name, parameter in module.named_parameters(recurse=False)
        }
    merged.get_parameter("weight").copy_(logits.to(weight.device).t() @ values)
    adapt_router(updated, table, slots, add)
    try:
        found, expected = updated(values), merged(values)
    except misfits():
        return False
    pairs = zip(as_tuple(found), as_tuple(expected), strict=True)
    return all(torch.allclose(own.float(), other.float(), rtol=1e-2, atol=1e-2) for own, other in pairs)


def may_be_router(module: nn.Module) -> bool:
    """Return True for a module of a model's own with one matrix, maybe a bias, and one input."""
    return (
        not isinstance(module, (WeightLayer, nn.Linear, nn.Embedding))
        and module._parameters.keys() in ({"weight"}, {"weight", "bias"})
        and module._parameters["weight"] is not None
        and module.get_parameter("weight").ndim == 2
        and module.get_parameter("weight").shape[1] >= TOKENS
        and len(signature(module.forward).parameters) == 1
    )


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
