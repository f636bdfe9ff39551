"""Quantised weights in the shape of a tensor, so that transformers can rename, tie and set them like dense ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.weight_format import Weight

aten = torch.ops.aten


class QuantizedTensor(Tensor):
    """A weight [out, in] in a quantised format, or a stack of experts' weights.

    Moves to a device and the operations by which transformers joins experts keep the format; every other operation is
    given it dequantised.
    """

    format: QuantizedFormat
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, format: QuantizedFormat, device: torch.device) -> "QuantizedTensor":
        own: QuantizedTensor = Tensor._make_wrapper_subclass(
            cls, format.shape, dtype=format.dtype, device=device
        )
        own.format = format
        return own

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        operation: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options = options or {}
        own = args[0]
        if operation is aten.detach.default:
            return cls(own.format, own.device)
        if operation is aten._to_copy.default:
            device, dtype = options.get("device") or own.device, options.get("dtype") or own.dtype
            return cls(own.format.to(device, dtype), device)
        stacked = stack(own) if operation is aten.stack.default and len(args) == 1 else None
        if operation is aten.cat.default and args[1:] in ((1,), (-2,)):
            stacked = join_outputs(own)
        if stacked is not None:
            return cls(stacked, own[0].device)
        args, options = tree_map_only(cls, lambda tensor: tensor.format.dense(), (args, options))
        return operation(*args, **options)


def stack(weights: Sequence[Tensor]) -> StackedFormat | None:
    """Return the weights of experts as one stack; None unless all are quantised."""
    formats = [weight.format for weight in weights if isinstance(weight, QuantizedTensor)]
    return StackedFormat(formats) if len(formats) == len(weights) else None


def join_outputs(weights: Sequence[Tensor]) -> StackedFormat | None:
    """Return stacks of experts with the outputs of each expert concatenated; None if their formats don't allow it."""
    formats = [weight.format for weight in weights if isinstance(weight, QuantizedTensor)]
    stacks = [format for format in formats if isinstance(format, StackedFormat)]
    return StackedFormat.joined(stacks) if len(stacks) == len(weights) else None


def dense(weight: Tensor) -> Tensor:
    """Return a weight that transformers read from a checkpoint, dequantised if necessary."""
    return weight.format.dense() if isinstance(weight, QuantizedTensor) else weight


def format_of(weight: Tensor, bias: Tensor | None) -> Weight:
    """Return the format of a weight [out, in] that transformers read from a checkpoint."""
    if isinstance(weight, QuantizedTensor):
        whole = weight.format.with_bias(bias)
        assert isinstance(whole, Weight)
        return whole
    return DenseFormat(weight, bias)
