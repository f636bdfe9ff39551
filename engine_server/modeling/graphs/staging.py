"""A step's inputs on the device, copied together to fixed addresses, which captured CUDA graphs read."""

from functools import lru_cache, partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import IntArray, Staged, StepInputs
from engine_server.modeling.device.interface import Device

Int32Array = npt.NDArray[np.int32]
Buffer = TypeVar("Buffer", Int32Array, Tensor)
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
# Shapes of steps whose views on the device are kept: those of decodes recur.
KEPT_VIEWS = 64


class StepBuffers(NamedTuple, Generic[Buffer]):
    """The parts of one buffer of a step's inputs, on the host or on the device."""

    # [3 + kinds, tokens]: token ids, positions, slots of each kind, and adapters.
    tokens: Buffer
    # [sequences + 1, 4]: one more for tokens that pad a step.
    prefills: Buffer
    # [sequences, 4]
    decodes: Buffer
    # [2, sequences]: of those that sample, the logit rows and the rows of the block table.
    sampling: Buffer


class Staging:
    """Device buffers for the inputs of a step, and this rank's copies of the block table.

    The copies have one more row than the scheduler's table, for padding: sequences without a context.

    max_sequences: those of a step.
    tables: the copy on the host, int32 [kinds, rows + 1, columns], for backends that read it on the host.
    views: returns the views of a step of a shape, of which some sequences sample, independent of the buffers' content.
    """

    def __init__(self, max_tokens: int, max_sequences: int, table: tuple[int, ...], platform: Device) -> None:
        """max_tokens, max_sequences: those of a step. table: the scheduler's block table, [kinds, rows, columns]."""
        kinds, rows, columns = table
        self.rows, self.max_sequences = rows, max_sequences
        self._platform, device = platform, platform.device
        tokens, sequences = aligned(max(max_tokens, max_sequences)), aligned(max_sequences)
        shapes = [(3 + kinds, tokens), (max_sequences + 1, 4), (max_sequences, 4), (2, sequences)]
        ends = np.cumsum([np.prod(shape) for shape in shapes]).tolist()
        self._spans = [
            (slice(start, end), shape)
            for start, end, shape in zip([0, *ends[:-1]], ends, shapes, strict=True)
        ]
        self._size: int = ends[-1]
        self._tables = torch.zeros(kinds, rows + 1, columns, dtype=torch.int32, device=device)
        self._buffer = torch.zeros(self._size + 2 * self._tables.numel(), dtype=torch.int32, device=device)
        self._inputs = self._buffer[: self._size]
        own = self._parts(self._inputs)
        self.views = lru_cache(KEPT_VIEWS)(partial(step_views, own, self._tables))
        # None: the host can't write to the device's buffers, or the device may still read them.
        self._written: StepBuffers[Int32Array] | None = None
        if platform.asynchronous:
            self.tables = np.zeros(self._tables.shape, dtype=np.int32)
        else:
            self.tables = self._tables.numpy()
            self._written = self._parts(self._inputs.numpy())

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
        num_changes = changes.shape[1]
        if num_changes:
            cells = np.ravel_multi_index(tuple(changes[:3]), self.tables.shape)
            self.tables.reshape(-1)[cells] = changes[3]
        if self._written is not None:
            own = self._write(self._written, inputs, sampling, shape)
        else:
            host = self._platform.host_buffer(self._size + 2 * num_changes, torch.int32)
            numbers = host.numpy()
            own = self._write(self._parts(numbers), inputs, sampling, shape)
            if num_changes:
                numbers[self._size :] = np.concatenate([cells, changes[3]])
                self._buffer[: len(numbers)].copy_(host, non_blocking=True)
                places, block_ids = self._buffer[self._size : len(numbers)].view(2, -1)
                self._tables.view(-1).index_copy_(0, places.long(), block_ids)
            else:
                self._inputs.copy_(host, non_blocking=True)
        return self.views(shape or own, len(sampling))

    def decodes(self, count: int) -> Staged:
        """Return the views of a step of `count` decodes, independent of the buffers' content."""
        return self.views(StepShape.of_decodes(count), count)

    def mixed_shape(self, tokens: int) -> StepShape:
        """Return a shape to which any step of at most `tokens` tokens can be padded."""
        prefills = min(tokens // 2, self.max_sequences) + 1  # the last one has the tokens that pad the step
        return StepShape(tokens, prefills, min(tokens, self.max_sequences))

    def attach(self, inputs: StepInputs, staged: Staged) -> StepInputs:
        """Return a step's inputs with their views on the device and the host's block table."""
        return inputs._replace(staged=staged, tables=list(self.tables))

    def _parts(self, buffer: Buffer) -> StepBuffers[Buffer]:
        """Return the parts of a buffer."""
        return StepBuffers(*[buffer[span].reshape(shape) for span, shape in self._spans])

    def _write(
        self,
        buffers: StepBuffers[Int32Array],
        inputs: StepInputs,
        sampling: IntArray,
        shape: StepShape | None,
    ) -> StepShape:
        """Write a step to a buffer, padded to `shape`; return its own shape."""
        count, sequences = inputs.tokens.shape[1], inputs.sequences[1:].T
        buffers.tokens[:-1, :count] = inputs.tokens
        buffers.tokens[-1, :count] = -1 if inputs.adapters is None else inputs.adapters
        num_prefills = 0
        if count > len(sequences):
            several = inputs.lengths > 1
            prefills, sequences = sequences[several], sequences[~several]
            num_prefills = len(prefills)
            buffers.prefills[:num_prefills] = prefills
        buffers.decodes[: len(sequences)] = sequences
        buffers.sampling[:, : len(sampling)] = inputs.sequences[:2].take(sampling, axis=1)
        own = StepShape(count, num_prefills, len(sequences))
        if shape is not None:
            self._pad(buffers, own, shape, len(sampling))
        return own

    def _pad(self, buffers: StepBuffers[Int32Array], own: StepShape, shape: StepShape, sampling: int) -> None:
        """Pad a step to `shape` with sequences without a context, and with sequences without tokens."""
        tokens, prefills, decodes, sampled = buffers
        more = slice(own.tokens, shape.tokens)
        tokens[:2, more], tokens[2:, more] = 0, -1
        prefills[own.prefills : shape.prefills] = decodes[own.decodes : shape.decodes] = (
            self.rows, shape.tokens, 0, 0,
        )  # fmt: skip
        if shape.prefills:
            prefills[own.prefills] = self.rows, own.tokens, shape.tokens - own.tokens, 0
        else:
            decodes[more, 1], decodes[more, 2] = np.arange(own.tokens, shape.tokens), 1
        sampled[0, sampling:], sampled[1, sampling:] = 0, self.rows


def aligned(count: int) -> int:
    """Round a number of elements up to a multiple of ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def step_views(buffers: StepBuffers[Tensor], tables: Tensor, shape: StepShape, sampling: int) -> Staged:
    """Return the views of a step of a shape, of which `sampling` sequences sample."""
    tokens, chosen = buffers.tokens[:, : shape.tokens], buffers.sampling[:, :sampling]
    return Staged(
        token_ids=tokens[0],
        positions=tokens[1],
        slots=tokens[2:-1],
        prefills=buffers.prefills[: shape.prefills],
        decodes=buffers.decodes[: shape.decodes],
        tables=tables,
        logit_rows=chosen[0],
        sampling=chosen[1],
        adapters=tokens[-1],
    )
