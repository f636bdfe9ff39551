"""A step's numbers on the device: brought by one copy, to places that stay, where a CUDA graph finds them again."""

import numpy as np
import torch

from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.platform.interface import Platform

ALIGNMENT = 4  # numbers, 16 bytes: Triton compiles a kernel once more where a tensor begins elsewhere


class Staging:
    """Holds what steps of at most `max_tokens` tokens are told, and the device's copy of the block table.

    A row more than the scheduler's is for sequences that only fill a step up: they have one token and no context.
    """

    def __init__(self, max_tokens: int, table: tuple[int, ...], platform: Platform) -> None:
        """table: the block table's shape, which is kinds of attention, rows, and blocks a row."""
        kinds, rows, max_blocks = table
        self.rows = rows
        self._platform, device = platform, platform.device
        tokens = max(max_tokens, rows)
        shapes = [(tokens,), (tokens,), (kinds, tokens), (rows, 4), (rows, 4), (rows,), (rows,)]
        sizes = [-(-int(np.prod(shape)) // ALIGNMENT) * ALIGNMENT for shape in shapes]
        self._places = [
            (start, start + int(np.prod(shape)), shape)
            for start, shape in zip(np.cumsum([0, *sizes[:-1]]).tolist(), shapes, strict=True)
        ]
        self._size = sum(sizes)
        self._known = np.zeros((kinds, rows + 1, max_blocks), dtype=np.int32)  # what `tables` says
        self._buffer = torch.zeros(self._size + 2 * self._known.size, dtype=torch.int32, device=device)
        self._tables = torch.zeros(self._known.shape, dtype=torch.int32, device=device)
        self._parts = [self._buffer[start:end].view(shape) for start, end, shape in self._places]

    def put(self, inputs: StepInputs, sampling: IntArray, padded: int = 0) -> Staged:
        """Copy a step; nobody waits. sampling: [n], which of the sequences sample.

        padded: fill a step of decodes alone up to so many sequences.
        """
        changes = self._changes(inputs)
        host = self._platform.host_buffer(self._size + changes.size, torch.int32)
        numbers = host.numpy()
        token_ids, positions, slots, prefills, decodes, logit_rows, rows = (
            numbers[start:end].reshape(shape) for start, end, shape in self._places
        )
        count, single = len(inputs.token_ids), inputs.lengths == 1
        token_ids[:count], positions[:count] = inputs.token_ids, inputs.positions
        for kind, places in enumerate(inputs.slots):
            slots[kind, :count] = places
        sequences = np.stack([inputs.rows, inputs.starts, inputs.lengths, inputs.contexts], axis=1)
        counts = []
        for target, sequences_now in ((prefills, sequences[~single]), (decodes, sequences[single])):
            target[: len(sequences_now)] = sequences_now
            counts.append(len(sequences_now))
        logit_rows[: len(sampling)] = (inputs.starts + inputs.lengths - 1)[sampling]
        rows[: len(sampling)] = inputs.rows[sampling]
        if padded:
            more = slice(count, padded)
            token_ids[more], positions[more], slots[:, more], rows[more] = 0, 0, -1, self.rows
            decodes[more] = self.rows, 0, 1, 0
            decodes[more, 1] = logit_rows[more] = np.arange(count, padded)
        numbers[self._size :] = changes.ravel()
        self._buffer[: len(host)].copy_(host, non_blocking=True)
        if changes.size:
            where, what = self._buffer[self._size : len(host)].view(2, -1)
            self._tables.view(-1).index_copy_(0, where.long(), what)
        if padded:
            return self.decodes(padded)
        return self._views(count, counts[0], counts[1], len(sampling))

    def decodes(self, count: int) -> Staged:
        """A step of `count` decodes, whatever was put there."""
        return self._views(count, 0, count, count)

    def _views(self, tokens: int, prefills: int, decodes: int, sampling: int) -> Staged:
        token_ids, positions, slots, long, single, logit_rows, rows = self._parts
        return Staged(
            token_ids[:tokens], positions[:tokens], slots[:, :tokens], long[:prefills], single[:decodes],
            self._tables, logit_rows[:sampling], rows[:sampling],
        )  # fmt: skip

    def _changes(self, inputs: StepInputs) -> IntArray:
        """[2, changes]: where in `tables`, flat, and what."""
        if not inputs.block_ids:
            return np.zeros((2, 0), dtype=np.int64)
        wanted = np.stack(inputs.block_ids)
        kinds, sequences, blocks = np.nonzero(wanted != self._known[:, inputs.rows, : wanted.shape[2]])
        where = np.ravel_multi_index((kinds, inputs.rows[sequences], blocks), self._known.shape)
        what = wanted[kinds, sequences, blocks]
        self._known.flat[where] = what
        return np.stack([where, what])
