"""A recorded step as native code: runs of native functions, and between them operations that only torch has."""

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

from engine_server.modeling.graphs.arena import Arena
from engine_server.modeling.graphs.merging import Affine
from engine_server.modeling.graphs.recording import (
    Fixed,
    NativeCall,
    Place,
    Recording,
    TorchCall,
    UnrecordableError,
    View,
    address,
    in_order,
    tensors_in,
)
from engine_server.modeling.native.library import FLOAT, SIGNATURES, kernels

# The most arguments of a function in program.cpp.
INTEGERS, FLOATS = 32, 4


class NativeRun(NamedTuple):
    """Consecutive native operations: the first one's index, and their number."""

    first: int
    length: int


@dataclass(slots=True)
class TorchRun:
    """An operation of torch: its function, and its arguments as the leaves of a tree."""

    function: Callable[..., Any]
    leaves: list[Any]
    tree: Any
    # The storage of each result, or None.
    results: list[int | None]
    # Storages that no later operation uses.
    last_uses: list[int]
    # True if all arguments have fixed addresses.
    fixed: bool
    # The latest number of rows and the arguments for it, if they have fixed addresses.
    kept: tuple[int, Any] = (0, None)


class Program:
    """A step for any number of rows up to `most`, over buffers of its own."""

    def __init__(self, recording: Recording, most: int, inputs: Callable[[], list[Tensor]]) -> None:
        """recording: merged; inputs: returns the tensors that were made for the step to run."""
        self._inputs = inputs
        self._kinds = [storage.kind for storage in recording.storages]
        self._arena = Arena(recording, most)
        # The tensor of each storage that isn't a buffer.
        self._tensors: list[Tensor | None] = [
            storage.tensor if storage.kind == "constant" else None for storage in recording.storages
        ]
        # Base 0 is that of numbers, storage i has base i + 1.
        self._bases = np.zeros(len(recording.storages) + 1, dtype=np.int64)
        for number, tensor in enumerate(self._tensors):
            self._bases[number + 1] = 0 if tensor is None else address(tensor)
        for number, place in self._arena.offsets.items():
            self._bases[number + 1] = self._arena.address + place
        operations: list[tuple[int, int, int, int]] = []
        arguments: list[tuple[int, int, int]] = []
        self._parts: list[NativeRun | TorchRun] = []
        for index, call in enumerate(recording.calls):
            if isinstance(call, TorchCall):
                self._parts.append(self._torch_run(index, call))
                continue
            last = self._parts[-1] if self._parts else None
            if isinstance(last, NativeRun):
                self._parts[-1] = NativeRun(last.first, last.length + 1)
            else:
                self._parts.append(NativeRun(len(operations), 1))
            operations.append((getattr(kernels(), call.name).address, len(arguments), *counts(call)))
            arguments += encoded(call)
        self._operations = np.array(operations, dtype=np.int64).reshape(-1, 4)
        self._arguments = np.array(arguments, dtype=np.int64).reshape(-1, 3)

    @property
    def num_native(self) -> int:
        """Number of native operations."""
        return len(self._operations)

    @property
    def bytes(self) -> int:
        """The size of the buffers."""
        return self._arena.bytes

    @property
    def torch_names(self) -> Counter[str]:
        """The operations of torch, and functions recorded as one operation, with the number of each."""
        functions = [part.function for part in self._parts if isinstance(part, TorchRun)]
        return Counter(str(one) if isinstance(one, OpOverload) else one.__qualname__ for one in functions)

    def run(self, rows: int) -> None:
        """Compute the step for `rows` rows."""
        for number, tensor in enumerate(self._inputs()):
            self._tensors[number], self._bases[number + 1] = tensor, address(tensor)
        operations, size = self._operations.ctypes.data, self._operations.strides[0]
        arguments, bases = self._arguments.ctypes.data, self._bases.ctypes.data
        for part in self._parts:
            if isinstance(part, NativeRun):
                kernels().run_program(operations + part.first * size, part.length, arguments, bases, rows)
            else:
                self._run_torch(part, rows)

    def _torch_run(self, index: int, call: TorchCall) -> TorchRun:
        def is_leaf(node: Any) -> bool:
            return isinstance(node, View | Affine)

        leaves, tree = tree_flatten(call.arguments, is_leaf=is_leaf)
        ended = [number for number in self._arena.last_uses[index] if self._kinds[number] == "result"]
        viewed = {self._kinds[leaf.storage] for leaf in leaves if isinstance(leaf, View)}
        fixed = viewed <= {"buffer", "constant"}
        return TorchRun(call.function, leaves, tree, call.results, ended, fixed)

    def _run_torch(self, part: TorchRun, rows: int) -> None:
        kept, given = part.kept
        if kept != rows:
            given = tree_unflatten([self._value(leaf, rows) for leaf in part.leaves], part.tree)
            if part.fixed:
                part.kept = rows, given
        arguments, options = given
        result = part.function(*arguments, **options)
        if not isinstance(part.function, OpOverload):
            result = in_order(result)
        tensors = [result] if isinstance(result, Tensor) else tensors_in(result)
        for number, tensor in zip(part.results, tensors, strict=True):
            if number is not None:
                self._tensors[number], self._bases[number + 1] = tensor, address(tensor)
        for number in part.last_uses:
            self._tensors[number] = None

    def _value(self, leaf: Any, rows: int) -> Any:
        if isinstance(leaf, Affine):
            return leaf.at(rows)
        if not isinstance(leaf, View):
            return leaf
        size, stride = ([at(number, rows) for number in numbers] for numbers in (leaf.size, leaf.stride))
        offset, tensor = at(leaf.offset, rows), self._tensors[leaf.storage]
        if tensor is None:
            tensor = self._arena.typed(leaf.dtype)
            offset += self._arena.offsets[leaf.storage] // leaf.dtype.itemsize
        elif tensor.dtype != leaf.dtype:  # complex numbers, viewed as pairs
            return torch.empty(0, dtype=leaf.dtype).set_(tensor.untyped_storage(), offset, size, stride)
        return tensor.as_strided(size, stride, offset)


def at(number: int | Affine, rows: int) -> int:
    return number.at(rows) if isinstance(number, Affine) else number


def counts(call: NativeCall) -> tuple[int, int]:
    """Return the number of integer and of floating-point arguments."""
    floats = SIGNATURES[call.name].count(FLOAT)
    integers = len(SIGNATURES[call.name]) - floats
    if integers > INTEGERS or floats > FLOATS:
        raise UnrecordableError(f"the native function {call.name} has too many arguments")
    return integers, floats


def encoded(call: NativeCall) -> Iterator[tuple[int, int, int]]:
    """Yield base, constant and slope of each argument, the integers first."""
    pairs = list(zip(SIGNATURES[call.name], call.arguments, strict=True))
    for kind, value in pairs:
        if kind is FLOAT:
            continue
        base = 0
        if isinstance(value, Place):
            base, value = value.storage + 1, value.offset
        elif isinstance(value, Fixed):
            value = value.address
        yield (base, *value) if isinstance(value, Affine) else (base, int(value), 0)
    for kind, value in pairs:
        if kind is FLOAT:
            yield 0, struct.unpack("<q", struct.pack("<fi", value, 0))[0], 0
