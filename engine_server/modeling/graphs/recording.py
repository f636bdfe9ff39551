"""The recording of a step: its operations in order, with every tensor as a place in a storage."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from engine_server.modeling.graphs.equivalents import native_equivalent
from engine_server.modeling.native.library import POINTER, SIGNATURES
from engine_server.modeling.native.recording import recorder


class UnrecordableError(RuntimeError):
    """A step that can't be replayed as a program; the message states why."""


class Place(NamedTuple):
    """An address in a storage."""

    storage: int
    # In bytes.
    offset: Any


class Fixed(NamedTuple):
    """An address that no recorded operation of torch has seen, such as a packed weight's."""

    address: int


class View(NamedTuple):
    """A tensor: a view of a storage. Sizes, strides and the offset count elements."""

    storage: int
    dtype: torch.dtype
    size: Any
    stride: Any
    offset: Any


@dataclass(eq=False)
class Storage:
    """The memory of one or more tensors.

    kind: "buffer": allocated uninitialised; "result" of an operation of torch; "input": of the step; "constant": it
    existed before.
    """

    kind: str
    bytes: Any
    # Keeps the memory alive, so that no two storages have the same address.
    tensor: Tensor


class NativeCall(NamedTuple):
    """A call of a native function."""

    name: str
    arguments: Any


class TorchCall(NamedTuple):
    """A call of an operation of torch, or of any function that is recorded as one operation."""

    function: Callable[..., Any]
    arguments: Any
    # The storage of each result; None: memory that existed before.
    results: Any


@dataclass
class Recording:
    """The operations of a step with one number of rows."""

    storages: list[Storage]
    calls: list[NativeCall | TorchCall]


def record(step: Callable[[], Any], inputs: Callable[[], list[Tensor]]) -> Recording:
    """Run a step and record it.

    inputs: returns the tensors made before the step, which differ between steps. To be called after the step.
    Raises UnrecordableError if the step depends on a tensor's values.
    """
    observer = Recorder()
    token = recorder.set(observer)
    try:
        with observer:
            step()
    finally:
        recorder.reset(token)
    return observer.resolve(inputs())


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch, of native functions, and those marked as one operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Name and arguments of native functions, or function, arguments, options and results.
        self._seen: list[tuple[Any, ...]] = []
        # Storages that operations have made, by address.
        self._made: dict[int, Storage] = {}
        # Every tensor seen, so that no address is used twice.
        self._kept: list[Tensor] = []
        self._inside = False

    def native(self, name: str, arguments: Sequence[Any]) -> None:
        if not self._inside:
            self._seen.append((name, arguments))

    def whole(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._inside:
            return function(*arguments, **options)
        self._inside = True
        try:
            result = in_order(function(*arguments, **options))
        finally:
            self._inside = False
        self._add(function, arguments, options, result)
        return result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        if self._inside:
            return result
        counted = torch.Tag.dynamic_output_shape in func.tags and func is not INDEX
        if counted or not (result is None or tensors_in(result)):
            raise UnrecordableError(f"{func} depends on the values of a tensor")
        if func.overloadpacket in ALLOCATIONS:
            self._keep(result)
            self._made[address(result)] = stored("buffer", result)
        elif func._schema.is_mutable or not self._aliases(result, args, options):
            self._add(func, args, options, result)
        else:
            self._kept += tensors_in(result)
        return result

    def _aliases(self, *trees: Any) -> bool:
        """Return True if all tensors of the first tree share their memory with tensors of the others."""
        given = {address(tensor) for tensor in tensors_in(trees[1:])}
        return all(address(tensor) in given for tensor in tensors_in(trees[0]))

    def _add(self, function: Any, arguments: Any, options: Any, result: Any) -> None:
        given = tensors_in((arguments, options))
        for tensor in given:
            self._keep(tensor)
        calls = native_equivalent(function, arguments, options, result)
        for tensor in tensors_in(result):
            self._keep(tensor)
            if all(address(tensor) != address(one) for one in given):
                kind = "result" if calls is None else "buffer"
                self._made[address(tensor)] = stored(kind, tensor)
        if calls is None:
            self._seen.append((function, arguments, options, result))
        else:
            self._seen += calls

    def _keep(self, tensor: Tensor) -> None:
        self._kept.append(tensor)

    def resolve(self, inputs: list[Tensor]) -> Recording:
        """Return the recording, with every address and tensor as a place in a storage."""
        places = Places(inputs, self._made, self._kept)
        calls = [
            places.native_call(*seen) if isinstance(seen[0], str) else places.torch_call(*seen)
            for seen in self._seen
        ]
        return Recording(places.storages, calls)


class Places:
    """The storages that a step names, numbered in the order in which it first names them, the inputs first."""

    def __init__(self, inputs: list[Tensor], made: Mapping[int, Storage], kept: Sequence[Tensor]) -> None:
        """made: what operations have made, by address; kept: every tensor that was seen. Raises UnrecordableError."""
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}
        for tensor in inputs:
            self._number(stored("input", tensor))
        if len(self.storages) != len(inputs):
            raise UnrecordableError("two tensors of the step share their memory")
        self._by_start = {address(one.tensor): one for one in self.storages} | dict(made)
        for tensor in kept:
            if address(tensor):
                self._by_start.setdefault(address(tensor), stored("constant", tensor))
        self._starts = sorted(self._by_start)

    def native_call(self, name: str, given: Sequence[Any]) -> NativeCall:
        arguments = [
            self._place(value) if kind is POINTER and value else value or 0
            for kind, value in zip(SIGNATURES[name], given, strict=True)
        ]
        return NativeCall(name, arguments)

    def torch_call(self, function: Callable[..., Any], given: Any, options: Any, result: Any) -> TorchCall:
        existing = {address(tensor) for tensor in tensors_in((given, options))}
        results = [
            None if address(one) in existing else self._number(self._by_start[address(one)])
            for one in tensors_in(result)
        ]
        return TorchCall(function, tree_map_only(Tensor, self._view, [list(given), dict(options)]), results)

    def _number(self, storage: Storage) -> int:
        start = address(storage.tensor)
        if start not in self._numbers:
            self._numbers[start] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[start]

    def _place(self, pointer: int) -> Place | Fixed:
        index = bisect_right(self._starts, pointer) - 1
        storage = self._by_start[self._starts[index]] if index >= 0 else None
        if storage is None or pointer >= self._starts[index] + storage.bytes:
            return Fixed(pointer)
        return Place(self._number(storage), pointer - self._starts[index])

    def _view(self, tensor: Tensor) -> View:
        if tensor.numel() == 0:
            raise UnrecordableError("an operation takes an empty tensor")
        storage = self._number(self._by_start[address(tensor)])
        return View(storage, tensor.dtype, [*tensor.size()], tensor.stride(), tensor.storage_offset())


def stored(kind: str, tensor: Tensor) -> Storage:
    """Return the storage of a tensor."""
    return Storage(kind, tensor.untyped_storage().nbytes(), tensor)


# Its result's shape depends on values only with masks, for which recordings differ in their sizes.
INDEX = torch.ops.aten.index.Tensor
# Operations whose result has no content yet.
ALLOCATIONS = {
    torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided, torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}  # fmt: skip


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def in_order(results: Any) -> Any:
    """Return the tensors in `results` contiguous: their strides may depend on values."""
    if isinstance(results, Tensor):
        return results.contiguous()
    return tree_map_only(Tensor, Tensor.contiguous, results)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]
