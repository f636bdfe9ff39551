"""A step's inputs on the device, copied together to fixed addresses, which captured CUDA graphs read."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.device import Device

Int32Array = npt.NDArray[np.int32]
# Changed cells of the block table, [4, n]: kind, row, column and block id.
TableChanges = Int32Array


class StepShape(NamedTuple):
    """The sizes of a captured step, to which a step is padded."""

    tokens: int
    # Sequences with several tokens.
    prefills: int
    # Sequences with one token.
    decodes: int

    @classmethod
    def of_decodes(cls, count: int) -> "StepShape":
        return cls(count, 0, count)


# In int32 elements, 16 bytes: Triton recompiles a kernel for a tensor with another alignment.
ALIGNMENT = 4
NO_CHANGES: TableChanges = np.zeros((4, 0), dtype=np.int32)


class Staging:
    """Device buffers for the inputs of a step, and this rank's copies of the block table.

    The copies have one more row than the scheduler's table, for padding: sequences without a context.

    max_sequences: those of a step.
    tables: the copy on the host, int32 [kinds, rows + 1, columns], for backends that read it on the host.
    """

    def __init__(self, max_tokens: int, max_sequences: int, table: tuple[int, ...], platform: Device) -> None:
        """max_tokens, max_sequences: those of a step. table: the scheduler's block table, [kinds, rows, columns]."""
        kinds, rows, columns = table
        self.rows, self.max_sequences = rows, max_sequences
        self._platform, device = platform, platform.device
        tokens = max(max_tokens, max_sequences)
        by_token, by_sequence = (tokens,), (max_sequences,)
        prefills, decodes = (max_sequences + 1, 4), (max_sequences, 4)  # one more for tokens that pad a step
        shapes = [by_token, by_token, (kinds, tokens), prefills, decodes, by_sequence, by_sequence, by_token]
        sizes = [-(-int(np.prod(shape)) // ALIGNMENT) * ALIGNMENT for shape in shapes]
        self._spans = [
            (start, start + int(np.prod(shape)), shape)
            for start, shape in zip(np.cumsum([0, *sizes[:-1]]).tolist(), shapes, strict=True)
        ]
        self._size = sum(sizes)
        self._tables = torch.zeros(kinds, rows + 1, columns, dtype=torch.int32, device=device)
        self._buffer = torch.zeros(self._size + 2 * self._tables.numel(), dtype=torch.int32, device=device)
        self._parts = [self._buffer[start:end].view(shape) for start, end, shape in self._spans]
        # None: the host can't write to the device's buffers, or the device may still read them.
        self._written: list[Int32Array] | None = None
        if platform.asynchronous:
            self.tables = np.zeros(self._tables.shape, dtype=np.int32)
        else:
            self.tables = self._tables.numpy()
            self._written = [part.numpy() for part in self._parts]

    def put(
        self,
        inputs: StepInputs,
        sampling: IntArray,
        shape: StepShape | None = None,
        changes: TableChanges = NO_CHANGES,
    ) -> Staged:
        """Copy a step to the device without waiting for it.

        sampling: [n], indexes of the sequences that sample.
        shape: to pad the step to; None: it keeps its own.
        changes: changes of the scheduler's table since the last call.
        """
        cells, block_ids = tuple(changes[:3]), changes[3]
        self.tables[cells] = block_ids
        if self._written is not None:
            own = self._write(self._written, inputs, sampling, shape)
        else:
            updates = np.stack([np.ravel_multi_index(cells, self.tables.shape), block_ids])
            host = self._platform.host_buffer(self._size + updates.size, torch.int32)
            numbers = host.numpy()
            parts = [numbers[start:end].reshape(size) for start, end, size in self._spans]
            own = self._write(parts, inputs, sampling, shape)
            numbers[self._size :] = updates.ravel()
            self._buffer[: len(host)].copy_(host, non_blocking=True)
            if updates.size:
                indices, new_ids = self._buffer[self._size : len(host)].view(2, -1)
                self._tables.view(-1).index_copy_(0, indices.long(), new_ids)
        return self.views(shape or own, len(sampling))

    def decodes(self, count: int) -> Staged:
        """Return the views of a step of `count` decodes, independent of the buffers' content."""
        return self.views(StepShape.of_decodes(count), count)

    def mixed_shape(self, tokens: int) -> StepShape:
        """Return a shape to which any step of at most `tokens` tokens can be padded."""
        prefills = min(tokens // 2, self.max_sequences) + 1  # the last one has the tokens that pad the step
        return StepShape(tokens, prefills, min(tokens, self.max_sequences))

    def views(self, shape: StepShape, sampling: int) -> Staged:
        """Return the views of a step, independent of the buffers' content. sampling: its sequences that sample."""
        token_ids, positions, slots, prefills, decodes, logit_rows, rows, adapters = self._parts
        count = shape.tokens
        return Staged(
            token_ids[:count], positions[:count], slots[:, :count], prefills[: shape.prefills],
            decodes[: shape.decodes], self._tables, logit_rows[:sampling], rows[:sampling], adapters[:count],
        )  # fmt: skip

    def attach(self, inputs: StepInputs, staged: Staged) -> StepInputs:
        """Return a step's inputs with their views on the device and the host's block table."""
        return inputs._replace(staged=staged, tables=list(self.tables))

    def _write(
        self, parts: list[Int32Array], inputs: StepInputs, sampling: IntArray, shape: StepShape | None
    ) -> StepShape:
        """Write a step to the parts of a buffer, padded to `shape`; return its own shape."""
        token_ids, positions, slots, prefills, decodes, logit_rows, rows, adapters = parts
        count, single = len(inputs.token_ids), inputs.lengths == 1
        token_ids[:count], positions[:count] = inputs.token_ids, inputs.positions
        adapters[:count] = -1 if inputs.adapters is None else inputs.adapters
        for kind, slots_of_kind in enumerate(inputs.slots):
            slots[kind, :count] = slots_of_kind
        sequences = np.stack([inputs.rows, inputs.starts, inputs.lengths, inputs.contexts], axis=1)
        num_decodes = int(np.count_nonzero(single))
        num_prefills = len(sequences) - num_decodes
        decodes[:num_decodes] = sequences[single] if num_prefills else sequences
        if num_prefills:
            prefills[:num_prefills] = sequences[~single]
        logit_rows[: len(sampling)] = (inputs.starts + inputs.lengths - 1)[sampling]
        rows[: len(sampling)] = inputs.rows[sampling]
        own = StepShape(count, num_prefills, num_decodes)
        if shape is not None:
            self._pad(parts, own, shape, len(sampling))
        return own

    def _pad(self, parts: list[Int32Array], own: StepShape, shape: StepShape, sampling: int) -> None:
        """Pad a step to `shape` with sequences without a context, and with sequences without tokens."""
        token_ids, positions, slots, prefills, decodes, logit_rows, rows, adapters = parts
        more = slice(own.tokens, shape.tokens)
        token_ids[more] = positions[more] = 0
        slots[:, more] = adapters[more] = -1
        prefills[own.prefills : shape.prefills] = decodes[own.decodes : shape.decodes] = (
            self.rows, shape.tokens, 0, 0,
        )  # fmt: skip
        if shape.prefills:
            prefills[own.prefills] = self.rows, own.tokens, shape.tokens - own.tokens, 0
        else:
            decodes[more, 1], decodes[more, 2] = np.arange(own.tokens, shape.tokens), 1
        logit_rows[sampling:], rows[sampling:] = 0, self.rows
