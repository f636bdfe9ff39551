"""Classes of modules with another forward.

A bound method in place of the forward would hold a reference to the module and keep its weights alive.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from engine_server.modeling.layers.weight_layer import original_class


def with_global(function: Any, name: str, value: object) -> Any:
    """Return a copy of a function in which the global `name` is `value`."""
    copy = FunctionType(
        function.__code__,
        function.__globals__ | {name: value},
        None,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def class_with_forward(module: nn.Module, forward: Callable[..., Any]) -> Any:
    """Return a subclass of a module's class with another forward."""
    kind = type(module)
    names = {"original": original_class(module), "__module__": kind.__module__}
    own: Any = type(kind.__name__, (kind,), names)
    own.forward = forward  # set afterwards: transformers wraps the forward in a class body for training
    return own
