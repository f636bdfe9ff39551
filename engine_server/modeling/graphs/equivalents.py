"""Native functions with the same bits as an operation of torch."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.native.library import DTYPES, address

aten = torch.ops.aten
# Name and arguments of a native function, as its caller gives them.
Call = tuple[str, tuple[Any, ...]]
# The most dimensions of the native functions' tensors.
DIMS = 4
# Native functions that write to their first address alone.
PURE = frozenset({"compute", "add_integer", "widen", "copy", "gather"})


class Operation(IntEnum):
    """The operations of the native function `compute`."""

    ADD = 1
    SUBTRACT = 2
    MULTIPLY = 3
    NEGATE = 4
    COPY = 5


def native_equivalent(
    function: Any, arguments: tuple[Any, ...], options: dict[str, Any], result: Any
) -> list[Call] | None:
    """Return the calls that write an operation's `result`, or None if there are none with the same bits."""
    translate = EQUIVALENTS.get(function)
    return None if translate is None or options else translate(result, *arguments)


def elementwise(operation: Operation) -> Callable[..., list[Call] | None]:
    """Return the translation of an operation of floating-point elements, with one operand or two that broadcast."""

    def translate(out: Any, a: Any, b: Any = 0) -> list[Call] | None:
        tensors = [one for one in (out, a, b) if isinstance(one, Tensor)]
        # A tensor without dimensions counts as a number, which torch rounds to the others' dtype first.
        rounded = any(one.dim() == 0 and one.dtype != out.dtype for one in tensors)
        if not isinstance(a, Tensor) or rounded or any(one.dtype not in DTYPES for one in tensors):
            return None
        others = [one.expand(out.shape) for one in tensors[1:]]
        strides = [one.stride() for one in others] + [(0,) * out.dim()] * (2 - len(others))
        dims = _joined([*zip(out.shape, out.stride(), *strides, strict=True)])
        if dims is None:
            return None
        second = b if isinstance(b, Tensor) else None
        halves = [one is not None and one.dtype == torch.bfloat16 for one in (out, a, second)]
        number = 0.0 if second is not None else float(b)
        if operation is not Operation.MULTIPLY:  # torch rounds the number in a sum, and none in a product
            number = torch.tensor(number, dtype=out.dtype).item()
        addresses = out.data_ptr(), a.data_ptr(), address(second)
        return [("compute", (operation, *halves, *addresses, *dims, number))]

    return translate


def _add(out: Any, a: Any, b: Any) -> list[Call] | None:
    if type(b) is int and _int64(out, a):
        return [("add_integer", (out.data_ptr(), a.data_ptr(), out.numel(), b))]
    return elementwise(Operation.ADD)(out, a, b)


def _gather(out: Any, table: Any, ids: Any, *_padding: Any) -> list[Call] | None:
    if not (table.dim() <= 2 and table.is_contiguous() and ids.is_contiguous()):
        return None
    size, is_long = table.shape[1:].numel() * table.itemsize, ids.dtype == torch.int64
    return [("gather", (is_long, out.data_ptr(), table.data_ptr(), ids.data_ptr(), ids.numel(), size))]


def _select(out: Any, table: Any, dim: int, ids: Any) -> list[Call] | None:
    return _gather(out, table, ids) if dim == 0 else None


def _cast(out: Any, values: Any, dtype: Any, *_: Any) -> list[Call] | None:
    if not _int64(out):
        return elementwise(Operation.COPY)(out, values)
    if values.dtype != torch.int32 or not values.is_contiguous():
        return None
    return [("widen", (out.data_ptr(), values.data_ptr(), out.numel()))]


def _copied(out: Any, source: Any, *_: Any) -> list[Call] | None:
    """Translate contiguous, clone and reshape, where they copy."""
    return _copy(out.view(source.shape), source) if out.is_contiguous() else None


def _copy_to(out: Any, target: Any, source: Any, *_: Any) -> list[Call] | None:
    if target.dtype != source.dtype:
        return elementwise(Operation.COPY)(target, source)
    return _copy(target, source) if target.shape == source.shape else None


def _cat(out: Any, parts: Any, dim: int = 0) -> list[Call] | None:
    pieces = torch.split(out, [part.shape[dim] for part in parts], dim)
    calls = [_copy(piece, part) for piece, part in zip(pieces, parts, strict=True)]
    return [call for some in calls if some for call in some] if all(calls) else None


def _stack(out: Any, parts: Any, dim: int = 0) -> list[Call] | None:
    calls = [_copy(out.select(dim, place), part) for place, part in enumerate(parts)]
    return [call for some in calls if some for call in some] if all(calls) else None


def _repeat(out: Any, source: Any, repeats: int, dim: int) -> list[Call] | None:
    target = out.unflatten(dim, (-1, repeats))
    return _copy(target, source.unsqueeze(dim % out.dim() + 1).expand(target.shape))


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


def _joined(dims: list[tuple[int, ...]]) -> list[int] | None:
    """Return size and strides of DIMS dimensions, some of them joined; None for more. dims: the same of any number."""
    joined: list[tuple[int, ...]] = []
    for size, *strides in dims:
        if size == 1:
            continue
        if joined and [*joined[-1][1:]] == [stride * size for stride in strides]:
            joined[-1] = (joined[-1][0] * size, *strides)
        else:
            joined.append((size, *strides))
    if len(joined) > DIMS:
        return None
    padded = [(1, 0, 0, 0)] * (DIMS - len(joined)) + joined
    return [number for dim in padded for number in dim]


def _int64(*tensors: Any) -> bool:
    """Return True for contiguous tensors of int64."""
    return all(one.dtype == torch.int64 and one.is_contiguous() for one in tensors)


EQUIVALENTS: dict[Any, Callable[..., list[Call] | None]] = {
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add,
    aten.sub.Tensor: elementwise(Operation.SUBTRACT),
    aten.mul.Tensor: elementwise(Operation.MULTIPLY),
    aten.mul_.Tensor: elementwise(Operation.MULTIPLY),
    aten.neg.default: elementwise(Operation.NEGATE),
    aten.embedding.default: _gather,
    aten.index_select.default: _select,
    aten.to.dtype: _cast,
    aten.contiguous.default: _copied,
    aten.clone.default: _copied,
    aten.reshape.default: _copied,
    aten.flatten.using_ints: _copied,
    aten._unsafe_view.default: _copied,
    aten.copy_.default: _copy_to,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.repeat_interleave.self_int: _repeat,
}
