"""Recurrences in a mixer's forward: they continue each sequence from its state, in place of one of zeros."""

import inspect
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.recurrence.convolution import Convolution
from engine_server.modeling.recurrence.delta_rule import DeltaRule
from engine_server.modeling.recurrence.function import RecurrentFunction
from engine_server.modeling.recurrence.state_space import StateSpace
from engine_server.modeling.replacements.forwards import class_with_forward, with_global
from engine_server.modeling.replacements.report import PassReport, Tally

# Functions of transformers that carry a state from token to token, by the names of a forward's globals, and ours.
OURS: dict[str, type[RecurrentFunction]] = {
    "causal_conv1d_fn": Convolution,
    "torch_chunk_gated_delta_rule": DeltaRule,
    "mamba2_chunk_scan": StateSpace,
}
# Likewise, without a version of ours.
UNKNOWN = ("chunk_kimi_delta_attention", "mamba_selective_scan")


def recurrences_in(module: nn.Module) -> tuple[Any, list[str]]:
    """Return the forward of a module's class, and the names of the recurrences that it calls.

    transformers wraps these forwards, for hooks of weights that are used outside of their module.
    """
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return forward, []
    return forward, [name for name in (*OURS, *UNKNOWN) if name in forward.__code__.co_names]


def replace_recurrences(model: PreTrainedModel) -> PassReport:
    """Make the mixers of a model compute recurrences by our functions.

    Raises UnsupportedModelError for a recurrence that we have no function for.
    """
    tally = Tally("recurrences")
    classes: dict[type, Any] = {}
    for module in model.modules():
        kind, (forward, names) = type(module), recurrences_in(module)
        if not names or all(isinstance(forward.__globals__[name], RecurrentFunction) for name in names):
            continue
        for name in names:
            if name in UNKNOWN:
                raise UnsupportedModelError(
                    f"{type(model).__name__} has {name} in {kind.__name__}, a recurrence that is not supported"
                )
        if kind not in classes:
            for name in names:
                forward = with_global(forward, name, OURS[name](forward.__globals__[name]))
            classes[kind] = class_with_forward(module, forward)
        module.__class__ = classes[kind]
        tally.replaced(original_class(module), " and ".join(names))
    return tally.report()
