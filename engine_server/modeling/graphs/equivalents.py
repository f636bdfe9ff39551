"""Native functions with the same bits as an operation of torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.native.library import DTYPES

aten = torch.ops.aten
# Name and arguments of a native function, as its caller gives them.
Call = tuple[str, tuple[Any, ...]]
DIMS = 4


def native_equivalent(
    function: Any, arguments: tuple[Any, ...], options: dict[str, Any], result: Any
) -> list[Call] | None:
    """Return the calls that write an operation's `result`, or None if there are none with the same bits."""
    translate = EQUIVALENTS.get(function)
    return None if translate is None or options else translate(result, *arguments)


def _add(out: Any, a: Any, b: Any) -> list[Call] | None:
    if type(b) is int and _int64(out, a):
        return [("add_integer", (out.data_ptr(), a.data_ptr(), out.numel(), b))]
    if not _alike(out, a, b):
        return None
    bfloat16 = out.dtype == torch.bfloat16
    return [("add", (bfloat16, out.data_ptr(), a.data_ptr(), b.data_ptr(), out.numel()))]


def _scale(out: Any, values: Any, factor: Any) -> list[Call] | None:
    if not _alike(out, values):
        return None
    bfloat16 = out.dtype == torch.bfloat16
    if isinstance(factor, Tensor):
        if factor.dim() > 0 or factor.dtype != out.dtype:
            return None
        return [("scale_by", (bfloat16, out.data_ptr(), values.data_ptr(), factor.data_ptr(), out.numel()))]
    return [("scale", (bfloat16, out.data_ptr(), values.data_ptr(), out.numel(), float(factor)))]


def _gather(out: Any, table: Any, ids: Any, *_padding: Any) -> list[Call] | None:
    if not (table.dim() == 2 and table.is_contiguous() and ids.is_contiguous()):
        return None
    size, is_long = table.shape[1] * table.itemsize, ids.dtype == torch.int64
    return [("gather", (is_long, out.data_ptr(), table.data_ptr(), ids.data_ptr(), ids.numel(), size))]


def _select(out: Any, table: Any, dim: int, ids: Any) -> list[Call] | None:
    return _gather(out, table, ids) if dim == 0 else None


def _cast(out: Any, values: Any, dtype: Any, *_: Any) -> list[Call] | None:
    if not _int64(out) or values.dtype != torch.int32 or not values.is_contiguous():
        return None
    return [("widen", (out.data_ptr(), values.data_ptr(), out.numel()))]


def _copied(out: Any, source: Any, *_: Any) -> list[Call] | None:
    """Translate contiguous, clone and reshape, where they copy."""
    return _copy(out.view(source.shape), source) if out.is_contiguous() else None


def _copy_to(out: Any, target: Any, source: Any, *_: Any) -> list[Call] | None:
    return _copy(target, source) if target.shape == source.shape else None


def _cat(out: Any, parts: Any, dim: int = 0) -> list[Call] | None:
    pieces = torch.split(out, [part.shape[dim] for part in parts], dim)
    calls = [_copy(piece, part) for piece, part in zip(pieces, parts, strict=True)]
    return [call for some in calls if some for call in some] if all(calls) else None


def _copy(target: Tensor, source: Tensor) -> list[Call] | None:
    """Return the copy of a tensor of the same shape; contiguous inner dimensions count as one element."""
    dims = [dim for dim in zip(source.shape, target.stride(), source.stride(), strict=True) if dim[0] != 1]
    count = 1
    while dims and dims[-1][1:] == (count, count):
        count *= dims.pop()[0]
    if target.dtype != source.dtype or len(dims) > DIMS:
        return None
    size = target.itemsize
    padded = [(1, 0, 0)] * (DIMS - len(dims)) + [(many, to * size, own * size) for many, to, own in dims]
    strides = [number for dim in padded for number in dim]
    return [("copy", (target.data_ptr(), source.data_ptr(), count * size, *strides))]


def _int64(*tensors: Any) -> bool:
    """Return True for contiguous tensors of int64."""
    return all(one.dtype == torch.int64 and one.is_contiguous() for one in tensors)


def _alike(*tensors: Any) -> bool:
    """Return True for contiguous tensors of one shape and one dtype that the kernels support."""
    first = tensors[0]
    return first.dtype in DTYPES and all(
        isinstance(one, Tensor)
        and (one.dtype, one.numel()) == (first.dtype, first.numel())
        and one.is_contiguous()
        for one in tensors
    )


EQUIVALENTS: dict[Any, Callable[..., list[Call] | None]] = {
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add,
    aten.mul.Tensor: _scale,
    aten.embedding.default: _gather,
    aten.index_select.default: _select,
    aten.to.dtype: _cast,
    aten.contiguous.default: _copied,
    aten.clone.default: _copied,
    aten.reshape.default: _copied,
    aten._unsafe_view.default: _copied,
    aten.copy_.default: _copy_to,
    aten.cat.default: _cat,
}
