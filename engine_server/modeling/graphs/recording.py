"""The recording of a step: its operations in order, with every tensor as a place in a storage."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

    storages: list[Storage] = field(default_factory=list)
    calls: list[NativeCall | TorchCall] = field(default_factory=list)


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
            self._made[address(result)] = Storage("buffer", result.untyped_storage().nbytes(), result)
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
                size = tensor.untyped_storage().nbytes()
                self._made[address(tensor)] = Storage(kind, size, tensor)
        if calls is None:
            self._seen.append((function, arguments, options, result))
        else:
            self._seen += calls

    def _keep(self, tensor: Tensor) -> None:
        self._kept.append(tensor)

    def resolve(self, inputs: list[Tensor]) -> Recording:
        """Return the recording, with every address and tensor as a place in a storage."""
        numbers: dict[int, int] = {}
        recording = Recording()

        def number(storage: Storage) -> int:
            start = address(storage.tensor)
            if start not in numbers:
                numbers[start] = len(recording.storages)
                recording.storages.append(storage)
            return numbers[start]

        for tensor in inputs:
            number(Storage("input", tensor.untyped_storage().nbytes(), tensor))
        if len(recording.storages) != len(inputs):
            raise UnrecordableError("two tensors of the step share their memory")
        spans = {address(one.tensor): one for one in recording.storages} | self._made
        for tensor in self._kept:
            if address(tensor) and address(tensor) not in spans:
                spans[address(tensor)] = Storage("constant", tensor.untyped_storage().nbytes(), tensor)
        starts = sorted(spans)

        def place(pointer: int) -> Place | Fixed:
            index = bisect_right(starts, pointer) - 1
            storage = spans[starts[index]] if index >= 0 else None
            if storage is None or pointer >= starts[index] + storage.bytes:
                return Fixed(pointer)
            return Place(number(storage), pointer - starts[index])

        def view(tensor: Tensor) -> View:
            if tensor.numel() == 0:
                raise UnrecordableError("an operation takes an empty tensor")
            storage = number(spans[address(tensor)])
            return View(storage, tensor.dtype, [*tensor.size()], tensor.stride(), tensor.storage_offset())

        for seen in self._seen:
            if isinstance(seen[0], str):
                kinds = SIGNATURES[seen[0]]
                arguments = [
                    place(value) if kind is POINTER and value else value or 0
                    for kind, value in zip(kinds, seen[1], strict=True)
                ]
                recording.calls.append(NativeCall(seen[0], arguments))
                continue
            function, given, options, result = seen
            existing = {address(tensor) for tensor in tensors_in((given, options))}
            results = [
                None if address(one) in existing else number(self._made[address(one)])
                for one in tensors_in(result)
            ]
            arguments = tree_map_only(Tensor, view, [list(given), dict(options)])
            recording.calls.append(TorchCall(function, arguments, results))
        return recording


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
