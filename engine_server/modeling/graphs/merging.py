"""One recording for any number of rows, from recordings with different numbers of rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from engine_server.modeling.graphs.recording import Fixed, Recording, Storage, UnrecordableError

# A constant made anew in each step is compared by its values if it has at most this number of elements.
SMALL = 64


class Affine(NamedTuple):
    """A number that depends on the number of rows."""

    constant: int
    slope: int

    def at(self, rows: int) -> int:
        return self.constant + self.slope * rows


def merge_recordings(recordings: Sequence[Recording], rows: Sequence[int]) -> Recording:
    """Return a recording whose integers are `Affine` where they differ. rows: those of each recording.

    Raises UnrecordableError if an integer isn't affine in the rows, or anything else differs.
    """
    storages = [_merge_storages(ones, rows) for ones in _aligned([one.storages for one in recordings])]
    calls = [_merge(ones, rows) for ones in _aligned([one.calls for one in recordings])]
    return Recording(storages, calls)


def _aligned(lists: Sequence[list[Any]]) -> Any:
    if len({len(one) for one in lists}) != 1:
        raise UnrecordableError("its operations depend on the number of rows")
    return zip(*lists, strict=True)


def _merge_storages(ones: Sequence[Storage], rows: Sequence[int]) -> Storage:
    first = ones[0]
    kind = _merge([one.kind for one in ones], rows)
    if kind == "constant" and not all(_same_memory(first, one) for one in ones):
        raise UnrecordableError(f"it makes a tensor of shape {[*first.tensor.shape]} from Python values")
    return Storage(kind, _merge([one.bytes for one in ones], rows), first.tensor)


def _same_memory(one: Storage, other: Storage) -> bool:
    a, b = one.tensor, other.tensor
    if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
        return True
    return a.numel() <= SMALL and a.dtype == b.dtype and torch.equal(a, b)


def _merge(values: Sequence[Any], rows: Sequence[int]) -> Any:
    """Merge trees of tuples and lists, whose leaves are equal, or integers."""
    first = values[0]
    if len({type(value) for value in values}) != 1:
        raise UnrecordableError(f"its operations depend on the number of rows: {_brief(values)}")
    if isinstance(first, Fixed):
        if len(set(values)) != 1:
            raise UnrecordableError("a native function reads memory that no recorded operation wrote")
        return first
    if isinstance(first, tuple | list):
        parts = [_merge(ones, rows) for ones in _aligned([list(value) for value in values])]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, dict):
        return {key: _merge([value.get(key) for value in values], rows) for key in first}
    if type(first) is int:
        return _merge_integers(values, rows)
    if any(value is not first and value != first for value in values):
        raise UnrecordableError(f"its operations depend on the number of rows: {_brief(values)}")
    return first


def _merge_integers(values: Sequence[int], rows: Sequence[int]) -> int | Affine:
    if len(set(values)) == 1:
        return values[0]
    slope = (values[1] - values[0]) // (rows[1] - rows[0])
    number = Affine(values[0] - slope * rows[0], slope)
    if any(number.at(many) != value for many, value in zip(rows, values, strict=True)):
        raise UnrecordableError(f"a size is not affine in the number of rows: {_brief(values)}")
    return number


def _brief(values: Sequence[Any]) -> str:
    return " and ".join(str(value)[:60] for value in values[:2])
