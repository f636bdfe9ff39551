"""Layers that take over weights while transformers reads a checkpoint.

transformers' loader sets each converted tensor as a parameter of the module that it belongs to. A `WeightLayer`
receives it there, so that it can be cut, joined with others and packed before the next one is read.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.weight_format import WeightFormat


class WeightLayer(nn.Module):
    """A layer whose parameters are placeholders on the meta device until their weights are received."""

    # True if weights stay plain parameters until `settle`, since transformers ties them to others after the loading.
    deferred = False
    # Tensors of the format that are not registered as parameters.
    tables: tuple[nn.Parameter, ...] = ()
    # Tensors of the format that have no storage that torch knows.
    opaque: tuple[Tensor, ...] = ()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Receive a weight that the loader sets; register everything else as nn.Module does."""
        if not self.deferred and param is not None and is_loaded(param) and name in self._parameters:
            placeholder = self._parameters[name]
            if placeholder is not None:
                placeholder._is_hf_initialized = True  # type: ignore[attr-defined]  # the loader must not initialize it
            self.receive(name, param.detach())
        else:
            super().register_parameter(name, param)

    def receive(self, name: str, tensor: Tensor) -> None:
        """Take over the whole tensor of the parameter `name`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Take over the parameters that were not received, and drop the placeholders."""
        raise NotImplementedError

    def hold(self, format: WeightFormat, dtype: torch.dtype) -> None:
        """Register the format's parameters of `dtype` in place of the placeholders, and keep the others.

        transformers takes the dtype of a model's first parameter for the model's: codes and scales are no parameters.
        """
        held = format.parameters()
        for name in self._parameters:
            fits = name in held and held[name].dtype == dtype
            self._parameters[name] = held.pop(name) if fits else None
        self.tables = tuple(held.values())
        self.opaque = tuple(format.opaque)

    def _apply(self, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tensors that are no parameters too: nn.Module calls this for each module that it moves."""
        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        for table in self.tables:
            table.data = convert(table.data)
        return self


def all_tensors(model: nn.Module) -> list[Tensor]:
    """Return the tensors of a model, those that are no parameters too."""
    layers = [module for module in model.modules() if isinstance(module, WeightLayer)]
    return [
        *model.parameters(),
        *model.buffers(),
        *(tensor for layer in layers for tensor in (*layer.tables, *layer.opaque)),
    ]


def is_loaded(parameter: nn.Parameter) -> bool:
    """Return True if transformers read a parameter from a checkpoint."""
    return not parameter.is_meta and getattr(parameter, "_is_hf_initialized", False)


_classes: dict[tuple[type, ...], Any] = {}


def derived_class(bases: tuple[type, ...], original: type) -> Any:
    """Return the class with these bases and the name of `original`, creating it at the first call."""
    if bases not in _classes:
        names = {"original": original, "__module__": original.__module__}
        _classes[bases] = type(original.__name__, bases, names)
    return _classes[bases]


def change_class(module: nn.Module, own: type[nn.Module]) -> None:
    """Replace the class that transformers gave a module by one that derives from it, below classes of ours."""
    kind, original = type(module), original_class(module)
    if kind is original:
        module.__class__ = own
    else:
        bases = tuple(own if base is original else base for base in kind.__bases__)
        module.__class__ = derived_class(bases, own)


def original_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that transformers gave a module."""
    original: type[nn.Module] = getattr(type(module), "original", type(module))
    return original
