"""The states of a model's recurrent layers.

A site is a place where a forward carries a state from token to token, named by the order of its calls. A slot is one
state of every site: all that the recurrent layers keep of the tokens before a point of one sequence.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import IntArray, StepInputs
from engine_server.modeling.cache.layout import Zeros


class StateShape(NamedTuple):
    """What one site keeps of one sequence."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Recurrence(ABC):
    """The states that one model's forwards continue. A forward begins, calls each site once, in order, and ends."""

    # Of the running forward, int64 [4, sequences] on the CPU: the first token, the number of tokens, the slot of the
    # state before them (-1: zeros), and the slot of the state after them.
    sequences: Tensor

    def begin(self, inputs: StepInputs) -> None:
        """Begin a forward of a step's sequences."""
        self._inputs: StepInputs | None = inputs
        self._site = -1

    def end(self) -> None:
        """Forget a step's inputs."""
        self._inputs = None

    def site(self, shape: StateShape, device: torch.device) -> Tensor:
        """Return the states of the next site, [slots, *shape]."""
        self._site += 1
        if self._site == 0:
            self._prepare(device)
        return self._states(self._site, shape, device)

    def _prepare(self, device: torch.device) -> None:
        """Take the sequences from the step's inputs, at its first site: a model with attention alone has none."""
        inputs = self._inputs
        assert inputs is not None, "no forward is running"
        sources, targets = self._places(inputs)
        columns = np.array([inputs.starts, inputs.lengths, sources, targets], np.int64)
        self.starts, self.lengths = columns[0].tolist(), columns[1].tolist()
        self.sequences = torch.from_numpy(columns)
        # The slots before and after, on the states' device.
        self._slots_there = self.sequences[2:].to(device)

    def read(self, states: Tensor) -> Tensor:
        """Return what a site keeps of the tokens before each sequence's, [sequences, *shape]: zeros at its start."""
        sources = self._slots_there[0]
        found = states.index_select(0, sources.clamp(min=0))
        return found.masked_fill_((sources < 0).view(-1, *[1] * (states.dim() - 1)), 0)

    def write(self, states: Tensor, after: Tensor) -> None:
        """Keep at a site what follows each sequence's tokens, [sequences, *shape]."""
        states.index_copy_(0, self._slots_there[1], after.to(states.dtype))

    @abstractmethod
    def _places(self, inputs: StepInputs) -> tuple[IntArray, IntArray]:
        """Return the slots of the states before and after the tokens of each sequence."""

    @abstractmethod
    def _states(self, site: int, shape: StateShape, device: torch.device) -> Tensor: ...


class StepRecurrence(Recurrence):
    """Sequences that begin and end in one step, as in a probe. It records the shapes of the sites."""

    def __init__(self) -> None:
        self.shapes: list[StateShape] = []

    def _places(self, inputs: StepInputs) -> tuple[IntArray, IntArray]:
        self.shapes = []
        return np.full(len(inputs.starts), -1), np.arange(len(inputs.starts))

    def _states(self, site: int, shape: StateShape, device: torch.device) -> Tensor:
        self.shapes.append(shape)
        return torch.empty((len(self.starts), *shape.shape), dtype=shape.dtype, device=device)


class StateCache(Recurrence):
    """Slots on a device. The block table has a row's slot in the column of the last token before the state."""

    def __init__(
        self, shapes: Sequence[StateShape], slots: int, kind: int, block_size: int, zeros: Zeros
    ) -> None:
        """kind: that of states in the block table."""
        self.shapes = list(shapes)
        # [slots, *shape] of each site.
        self.tensors = [zeros((slots, *one.shape), one.dtype) for one in shapes]
        self._kind, self._block_size = kind, block_size

    def _places(self, inputs: StepInputs) -> tuple[IntArray, IntArray]:
        table = inputs.tables[self._kind]
        first = inputs.contexts - inputs.lengths
        sources = np.where(first == 0, -1, self._slots(table, inputs.rows, np.maximum(first, 1)))
        return sources, self._slots(table, inputs.rows, inputs.contexts)

    def _slots(self, table: np.ndarray, rows: IntArray, ends: IntArray) -> IntArray:
        """Return the slots of the states after the first `ends` tokens of some rows."""
        slots: IntArray = table[rows, (ends - 1) // self._block_size].astype(np.int64)
        return slots

    def _states(self, site: int, shape: StateShape, device: torch.device) -> Tensor:
        assert shape == self.shapes[site], "the layers' recurrences are not called in order"
        return self.tensors[site]
