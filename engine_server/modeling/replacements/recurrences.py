"""Recurrences in a mixer's forward: they continue each sequence from its state, in place of one of zeros."""

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.recurrence.function import RecurrentFunction
from engine_server.modeling.replacements.forwards import class_with_forward, with_global
from engine_server.modeling.replacements.report import PassReport, Tally

# Functions of transformers that carry a state from token to token, and of which we have no version.
UNKNOWN = ("chunk_kimi_delta_attention", "mamba_selective_scan")


def replace_recurrences(model: PreTrainedModel, kernels: KernelSet) -> PassReport:
    """Make the mixers of a model compute recurrences by our functions.

    Raises UnsupportedModelError for a recurrence that we have no function for.
    """
    ours = {one.replaces: one for one in kernels.recurrences}
    tally = Tally("recurrences")
    # Ours by the class that it replaces, with what it computes; None: that calls no recurrence.
    classes: dict[type, tuple[Any, str] | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in classes:
            classes[kind] = recurrent_class(module, type(model).__name__, ours)
        if (found := classes[kind]) is not None:
            module.__class__, names = found
            tally.replaced(original_class(module), names)
    return tally.report()


def recurrent_class(
    module: nn.Module, model: str, ours: Mapping[str, type[RecurrentFunction]]
) -> tuple[Any, str] | None:
    """Return a subclass of a module's class whose forward calls our recurrences, and their names; None: it calls none.

    transformers wraps these forwards, for hooks of weights that are used outside of their module. model: the name of
    the model's class; ours: by the names of the functions that they replace. Raises UnsupportedModelError.
    """
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return None
    names = [name for name in (*ours, *UNKNOWN) if name in forward.__code__.co_names]
    for name in names:
        if name in UNKNOWN:
            raise UnsupportedModelError(
                f"{model} has {name} in {type(module).__name__}, a recurrence that is not supported"
            )
    own: Any = forward
    for name in names:
        own = with_global(own, name, ours[name](own.__globals__[name]))
    return (class_with_forward(module, own), " and ".join(names)) if names else None
