"""A step's inputs on the device, copied together to fixed addresses, which captured CUDA graphs read."""

import numpy as np
import numpy.typing as npt
import torch

from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.device import Device

Int32Array = npt.NDArray[np.int32]
# Changed cells of the block table, [4, n]: kind, row, column and block id.
TableChanges = Int32Array

# In int32 elements, 16 bytes: Triton recompiles a kernel for a tensor with another alignment.
ALIGNMENT = 4
NO_CHANGES: TableChanges = np.zeros((4, 0), dtype=np.int32)


class Staging:
    """Device buffers for the inputs of a step, and this rank's copies of the block table.

    The copies have one more row than the scheduler's table, for padding: sequences of one token without a context.

    max_sequences: those of a step.
    tables: the copy on the host, int32 [kinds, rows + 1, columns], for backends that read it on the host.
    """

    def __init__(self, max_tokens: int, max_sequences: int, table: tuple[int, ...], platform: Device) -> None:
        """max_tokens, max_sequences: those of a step. table: the scheduler's block table, [kinds, rows, columns]."""
        kinds, rows, columns = table
        self.rows, self.max_sequences = rows, max_sequences
        self._platform, device = platform, platform.device
        tokens = max(max_tokens, max_sequences)
        by_token, by_sequence, spans = (tokens,), (max_sequences,), (max_sequences, 4)
        shapes = [by_token, by_token, (kinds, tokens), spans, spans, by_sequence, by_sequence, by_token]
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
        self, inputs: StepInputs, sampling: IntArray, padded: int = 0, changes: TableChanges = NO_CHANGES
    ) -> Staged:
        """Copy a step to the device without waiting for it.

        sampling: [n], indexes of the sequences that sample.
        padded: for a step of decodes alone, the number of sequences to pad it to; at most their own for none.
        changes: changes of the scheduler's table since the last call.
        """
        cells, block_ids = tuple(changes[:3]), changes[3]
        self.tables[cells] = block_ids
        if self._written is not None:
            num_prefills, num_decodes = self._write(self._written, inputs, sampling, padded)
        else:
            updates = np.stack([np.ravel_multi_index(cells, self.tables.shape), block_ids])
            host = self._platform.host_buffer(self._size + updates.size, torch.int32)
            numbers = host.numpy()
            parts = [numbers[start:end].reshape(shape) for start, end, shape in self._spans]
            num_prefills, num_decodes = self._write(parts, inputs, sampling, padded)
            numbers[self._size :] = updates.ravel()
            self._buffer[: len(host)].copy_(host, non_blocking=True)
            if updates.size:
                indices, new_ids = self._buffer[self._size : len(host)].view(2, -1)
                self._tables.view(-1).index_copy_(0, indices.long(), new_ids)
        count = len(inputs.token_ids)
        if padded > count:
            return self.decodes(padded)
        return self._views(count, num_prefills, num_decodes, len(sampling))

    def decodes(self, count: int) -> Staged:
        """Return the views of a step of `count` decodes, independent of the buffers' content."""
        return self._views(count, 0, count, count)

    def attach(self, inputs: StepInputs, staged: Staged) -> StepInputs:
        """Return a step's inputs with their views on the device and the host's block table."""
        return inputs._replace(staged=staged, tables=list(self.tables))

    def _write(
        self, parts: list[Int32Array], inputs: StepInputs, sampling: IntArray, padded: int
    ) -> tuple[int, int]:
        """Write a step to the parts of a buffer; return its numbers of sequences with several tokens and with one."""
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
        if padded > count:
            more = slice(count, padded)
            token_ids[more] = positions[more] = 0
            slots[:, more] = adapters[more] = -1
            decodes[more] = self.rows, 0, 1, 0
            rows[more] = self.rows
            decodes[more, 1] = logit_rows[more] = np.arange(count, padded)
        return num_prefills, num_decodes

    def _views(self, tokens: int, prefills: int, decodes: int, sampling: int) -> Staged:
        token_ids, positions, slots, long, single, logit_rows, rows, adapters = self._parts
        return Staged(
            token_ids[:tokens], positions[:tokens], slots[:, :tokens], long[:prefills], single[:decodes],
            self._tables, logit_rows[:sampling], rows[:sampling], adapters[:tokens],
        )  # fmt: skip
