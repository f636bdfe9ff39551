"""Attention on a CPU by our C++ kernels: paged, which reads K and V where they lie in the cache, and within a step."""

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import IntArray, StepInputs, UnsupportedModelError
from engine_server.modeling.attention.native_pages import GROUP, attend, takes, write
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.heads.scoring import Scoring


class NativeAttention(TorchAttention):
    """Attention over a cache with the shapes of TorchAttention's, and the order of elements of native/cache.h."""

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        rows = (inputs.rows, inputs.starts, *joined(inputs))
        # int32 [T, 4]: row of the block table, first token, tokens in this step, tokens in the cache with them. As many
        # as tokens, since a recorded step has as many of each; the last ones have no tokens.
        sequences = np.zeros((len(inputs.token_ids), 4), dtype=np.int32)
        np.stack(rows, 1, out=sequences[: len(inputs.rows)], casting="unsafe")
        self._sequences = torch.from_numpy(sequences)
        # For each kind, int32 [R, blocks a row]; copies nothing if the table is staged.
        self._tables = [torch.from_numpy(np.ascontiguousarray(table)) for table in inputs.tables]

    def step_tensors(self) -> list[Tensor]:
        return [*(slots.places for slots in self._slots), self._sequences, *self._tables]

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values = self.keys[tensor], self.values[tensor]
        if takes(key.dtype, keys):
            write(keys, values, key, value, self._slots[kind].places)
        else:
            super().store(layer, key, value)

    def read(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values = self.keys[tensor], self.values[tensor]
        if not takes(query.dtype, keys):
            return super().read(layer, query, scoring)
        return attend(keys, values, query, self._tables[kind], self._sequences, scoring)

    def require_invariance(self, dtype: torch.dtype) -> None:
        super().require_invariance(dtype)
        if not all(takes(dtype, keys) for keys in self.keys):
            raise UnsupportedModelError(
                "batch_invariant on a CPU takes float32 or bfloat16, heads of an even size and a block_size that is a "
                f"multiple of {GROUP}; this is {str(dtype).removeprefix('torch.')} with a block_size of "
                f"{self.block_size}"
            )


class NativeStepAttention(StepAttention):
    """Attention within a step, whose K and V are written to pages for one layer at a time.

    In float32 torch's own kernel is faster for all but short prompts.
    """

    def __init__(self, writes_scores: bool = False) -> None:
        super().__init__(writes_scores)
        # By dtype, number of heads and their size, for as many tokens as any step had.
        self._pages: dict[tuple[str, torch.dtype, torch.Size], Pages] = {}

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        lengths = inputs.lengths
        blocks = -(-lengths // GROUP)
        firsts = np.cumsum(blocks) - blocks
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = (np.arange(len(lengths)), inputs.starts, lengths, lengths)
        self._num_blocks = int(blocks.sum())
        self._slots = torch.from_numpy(np.repeat(firsts, lengths) * GROUP + offsets)
        self._spans = torch.from_numpy(np.stack(rows, 1).astype(np.int32))
        self._table = torch.from_numpy((firsts[:, None] + np.arange(blocks.max())).astype(np.int32))

    def within_step(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        if query.dtype != torch.bfloat16 or scoring.relative_bias is not None:
            return super().within_step(query, key, value, scoring)
        keys, values = self._pages_for("keys", key), self._pages_for("values", value)
        if not takes(query.dtype, keys):
            return super().within_step(query, key, value, scoring)
        write(keys, values, key, value, self._slots)
        return attend(keys, values, query, self._table, self._spans, scoring)

    def _pages_for(self, name: str, given: Tensor) -> Pages:
        shape = (name, given.dtype, given.shape[1:])
        if shape not in self._pages or len(self._pages[shape].data) < self._num_blocks:
            heads, dim = given.shape[1:]
            self._pages[shape] = Pages(given.new_empty(self._num_blocks, heads, GROUP, dim))
        return self._pages[shape]


def joined(inputs: StepInputs) -> tuple[IntArray, IntArray]:
    """Return lengths and contexts, [S] each, with the tokens of sequences that continue each other in the first one.

    The others are left with none. A token and its drafts are such sequences: together they read the cache once.
    """
    rows, lengths, contexts = inputs.rows, inputs.lengths, inputs.contexts
    continues = np.append(False, (rows[1:] == rows[:-1]) & (contexts[1:] - lengths[1:] == contexts[:-1]))
    if not continues.any():
        return lengths, contexts
    firsts = np.flatnonzero(~continues)
    lasts = np.append(firsts[1:], len(rows)) - 1
    joined_lengths, joined_contexts = np.zeros_like(lengths), contexts.copy()
    joined_lengths[firsts] = np.add.reduceat(lengths, firsts)
    joined_contexts[firsts] = contexts[lasts]
    return joined_lengths, joined_contexts
