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

    # Of the running forward: the first token of each sequence, and the number of its tokens.
    starts: Sequence[int] = ()
    lengths: Sequence[int] = ()

    def begin(self, inputs: StepInputs) -> None:
        """Prepare a forward of a step's sequences."""
        self.starts, self.lengths = inputs.starts.tolist(), inputs.lengths.tolist()
        self._site = -1

    def end(self) -> None:
        """Forget a step's inputs."""
        self.starts = self.lengths = ()

    def read(self, shape: StateShape, device: torch.device) -> Tensor:
        """Return the state of the next site before each sequence's tokens, [sequences, *shape]: zeros at its start."""
        self._site += 1
        return self._read(self._site, shape, device)

    def write(self, states: Tensor) -> None:
        """Keep the state of the site that was read last after each sequence's tokens, [sequences, *shape]."""
        self._write(self._site, states)

    @abstractmethod
    def _read(self, site: int, shape: StateShape, device: torch.device) -> Tensor: ...

    @abstractmethod
    def _write(self, site: int, states: Tensor) -> None: ...


class StepRecurrence(Recurrence):
    """Sequences that begin and end in one step, as in a probe. It records the shapes of the sites."""

    def __init__(self) -> None:
        self.shapes: list[StateShape] = []

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        self.shapes = []

    def _read(self, site: int, shape: StateShape, device: torch.device) -> Tensor:
        self.shapes.append(shape)
        return torch.zeros((len(self.starts), *shape.shape), dtype=shape.dtype, device=device)

    def _write(self, site: int, states: Tensor) -> None:
        """Do nothing: the sequences have ended."""


class StateCache(Recurrence):
    """Slots on a device. The block table has a row's slot in the column of the last token before the state."""

    def __init__(
        self,
        shapes: Sequence[StateShape],
        slots: int,
        kind: int,
        block_size: int,
        device: torch.device,
        zeros: Zeros,
    ) -> None:
        """kind: that of states in the block table."""
        self.shapes = list(shapes)
        # [slots, *shape] of each site.
        self.tensors = [zeros((slots, *one.shape), one.dtype) for one in shapes]
        self._kind, self._block_size, self._device = kind, block_size, device

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        table = inputs.tables[self._kind]
        first = inputs.contexts - inputs.lengths
        self._begins = torch.from_numpy(first == 0).to(self._device)
        sources = self._slots(table, inputs.rows, np.maximum(first, 1))
        self._sources = torch.from_numpy(np.where(first == 0, 0, sources)).to(self._device)
        self._targets = torch.from_numpy(self._slots(table, inputs.rows, inputs.contexts)).to(self._device)
        self._any_begins = bool((first == 0).any())

    def _slots(self, table: np.ndarray, rows: IntArray, ends: IntArray) -> IntArray:
        """Return the slots of the states after the first `ends` tokens of some rows."""
        slots: IntArray = table[rows, (ends - 1) // self._block_size].astype(np.int64)
        return slots

    def _read(self, site: int, shape: StateShape, device: torch.device) -> Tensor:
        assert shape == self.shapes[site], "the layers' recurrences are not called in order"
        states = self.tensors[site].index_select(0, self._sources)
        if self._any_begins:
            states[self._begins] = 0
        return states

    def _write(self, site: int, states: Tensor) -> None:
        self.tensors[site].index_copy_(0, self._targets, states.to(self.shapes[site].dtype))
