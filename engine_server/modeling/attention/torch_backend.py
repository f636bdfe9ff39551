"""Paged attention in plain torch: gather the blocks of each context, then attend. Runs on every device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import IntArray, StepInputs
from engine_server.modeling.attention.paged_attention import PagedAttention
from engine_server.modeling.attention.torch_scores import (
    Masks,
    Sequence,
    attention,
    mask_out,
    may_write_scores,
    scores_of,
)
from engine_server.modeling.cache.layout import Layout, Pages
from engine_server.modeling.cache.quantised import quantised
from engine_server.modeling.device.interface import Device
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.native.recording import one_operation

# Number of decodes of one width from which a CPU is faster in bfloat16 if scores are written to memory.
MANY_DECODES = 16


class TorchAttention(PagedAttention):
    """One K and one V tensor for each of the layout's: [blocks, kv heads, block size, dim].

    The tokens of a head are contiguous, so that gathered blocks can be multiplied without a copy.
    """

    def __init__(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype, platform: Device
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self.device = platform.device
        self.writes_scores = platform.writes_scores
        # In 16 bits, results need not be bitwise independent of batch composition.
        self.halved = dtype in (torch.bfloat16, torch.float16)
        # Zeroed: masked slots are multiplied by a weight of 0, and 0 * NaN is NaN.
        self.keys, self.values = layout.allocate(
            pool_sizes, block_size, dtype, platform.zeros, heads_first=True
        )

    def begin(self, inputs: StepInputs) -> None:
        self._inputs = inputs
        # A copy, since recorded programs read it until the next step, when the inputs are gone.
        self._slots = [
            Slots(torch.from_numpy(slots.copy()).to(self.device), self.block_size) for slots in inputs.slots
        ]
        self._parts: dict[int, list[Part]] = {}

    def end(self) -> None:
        del self._inputs

    def stage(self, inputs: StepInputs) -> None:
        self.begin(inputs)

    @one_operation
    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        self.copy(kind, self.keys[tensor], key)
        self.copy(kind, self.values[tensor], value)

    @one_operation
    def read(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values = self.keys[tensor], self.values[tensor]
        parts = self.parts(kind, query, values, scoring)
        if len(parts) == 1:  # it covers all tokens
            return parts[0].attend(query, keys, values, scoring)
        output = query.new_empty(*query.shape[:2], values.data.shape[-1])
        for part in parts:
            output[part.tokens] = part.attend(query[part.tokens], keys, values, scoring)
        return output

    def copy(self, kind: int, pages: Pages, given: Tensor) -> None:
        """Copy the step's K or V [T, kv heads, dim] to a layer's pages."""
        rows, given = self._slots[kind].rows(given.shape[1]), given.flatten(0, 1)
        if pages.scales is None:
            pages.data.flatten(0, 2).index_copy_(0, rows, given)
            return
        data, scales = quantised(given, pages.data.dtype)
        pages.data.view(torch.uint8).flatten(0, 2).index_copy_(0, rows, data.view(torch.uint8))
        pages.scales.flatten(0, 2).index_copy_(0, rows, scales)

    def parts(self, kind: int, query: Tensor, values: Pages, scoring: Scoring) -> list["Part"]:
        """Return the parts of the step for layers of one kind of attention; together they cover all its tokens."""
        if kind not in self._parts:
            self._parts[kind] = [*self._prefills(self._inputs, kind), *self._decodes(self._inputs, kind)]
        return self._parts[kind]

    def _prefills(self, inputs: StepInputs, kind: int) -> Iterator["Prefill"]:
        firsts, contexts = self._seen(inputs, kind)
        for sequence in np.flatnonzero(inputs.lengths > 1).tolist():
            start, first, context = (int(of_all[sequence]) for of_all in (inputs.starts, firsts, contexts))
            row = inputs.rows[sequence]
            blocks = inputs.tables[kind][row, first : first - (-context // self.block_size)]
            tokens = slice(start, start + int(inputs.lengths[sequence]))
            yield Prefill(
                Sequence(context, self.writes_scores, first * self.block_size),
                tokens,
                Blocks(torch.from_numpy(blocks[None]).to(self.device)),
            )

    def _decodes(self, inputs: StepInputs, kind: int) -> Iterator["DecodeGroup"]:
        firsts, contexts = self._seen(inputs, kind)
        sequences = np.flatnonzero(inputs.lengths == 1)
        held = -(-contexts // self.block_size)
        widths = rounded(held[sequences])
        for most in np.unique(widths).tolist():
            members = sequences[widths == most]
            width = int(held[members].max()) if self.halved else most
            # A width is padded with the sequence's own last block: a NaN in another block would pass the mask.
            columns = np.minimum(np.arange(width), held[members, None] - 1) + firsts[members, None]
            blocks = inputs.tables[kind][inputs.rows[members, None], columns]
            yield DecodeGroup(
                selection(inputs.starts[members], self.device),
                torch.from_numpy(inputs.contexts[members] - 1).to(self.device),
                torch.from_numpy(firsts[members] * self.block_size).to(self.device),
                Blocks(torch.from_numpy(blocks).to(self.device)),
                width * self.block_size,
                self.writes_scores,
            )

    def _seen(self, inputs: StepInputs, kind: int) -> tuple[IntArray, IntArray]:
        """Return [S], the first block that each sequence needs, and [S], the tokens from there on."""
        needed = self.layout.specs[kind].first_needed(inputs.contexts - inputs.lengths)
        first = np.maximum(needed, np.zeros_like(inputs.contexts)) // self.block_size
        return first, inputs.contexts - first * self.block_size


@dataclass(slots=True)
class Slots:
    """Slots of the cache for a step's K and V."""

    # [T], block id * block size + offset.
    places: Tensor
    block_size: int
    # Rows by the number of KV heads.
    by_heads: dict[int, Tensor] = field(default_factory=dict)

    def rows(self, kv_heads: int) -> Tensor:
        """Return [T * kv heads], the row of each token's heads in a cache that is flat but for the dim."""
        if kv_heads not in self.by_heads:
            blocks, offsets = self.places // self.block_size, self.places % self.block_size
            heads = torch.arange(kv_heads, device=self.places.device)
            rows = (blocks[:, None] * kv_heads + heads) * self.block_size + offsets[:, None]
            self.by_heads[kv_heads] = rows.flatten()
        return self.by_heads[kv_heads]


@dataclass(slots=True)
class Blocks:
    """Blocks of several sequences, the same number for each."""

    # [n, blocks]
    ids: Tensor
    # Rows of a cache by the number of KV heads.
    by_heads: dict[int, Tensor] = field(default_factory=dict)

    def gather(self, pages: Pages, dtype: torch.dtype) -> Tensor:
        """Return [n, kv heads, tokens, dim] of pages [all blocks, kv heads, block size, dim], converted to `dtype`."""
        data = self._gather(pages.data)
        return data if pages.scales is None else data.to(dtype) * self._gather(pages.scales).to(dtype)

    def _gather(self, cache: Tensor) -> Tensor:
        kv_heads, dim = cache.shape[1], cache.shape[3]
        if kv_heads not in self.by_heads:
            heads = torch.arange(kv_heads, dtype=self.ids.dtype, device=self.ids.device)
            self.by_heads[kv_heads] = (self.ids[:, None] * kv_heads + heads[:, None]).flatten()
        gathered = cache.flatten(0, 1).flatten(1).index_select(0, self.by_heads[kv_heads])
        return gathered.view(len(self.ids), kv_heads, -1, dim)


class Part(Protocol):
    """Some of a step's tokens, computed together."""

    # Their indices in the step.
    tokens: slice | Tensor

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        """Return [tokens, query heads, dim] of query [tokens, query heads, dim]; keys, values: the layer's cache."""


@dataclass(slots=True)
class Prefill:
    """One sequence with several tokens in this step."""

    sequence: Sequence
    # Their indices in the step.
    tokens: slice | Tensor
    # [1, blocks]
    blocks: Blocks

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        context = self.sequence.context
        key, value = (self.blocks.gather(pages, query.dtype)[0, :, :context] for pages in (keys, values))
        return self.sequence.attend(query.transpose(0, 1), key, value, scoring)


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one token in this step, whose contexts round up to the same number of blocks.

    In float32 they are computed with that number of blocks. It depends on a sequence's own length alone, so that
    results are bitwise independent of batch composition.
    """

    # Their indices in the step.
    tokens: slice | Tensor
    # [n], positions of these tokens, and of the first ones in their blocks.
    positions: Tensor
    firsts: Tensor
    # [n, blocks]
    blocks: Blocks
    # Tokens of the blocks.
    width: int
    # See `Device`.
    writes_scores: bool
    masks: Masks = field(default_factory=dict)

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        """Return [n, query heads, dim] of query [n, query heads, dim].

        The query heads that share a KV head become queries of that head: grouped-query attention without copies.
        """
        count, heads, dim = query.shape
        kv_heads = keys.data.shape[1]
        query = query.reshape(count, kv_heads, heads // kv_heads, dim)
        key, value = (self.blocks.gather(pages, query.dtype) for pages in (keys, values))
        mask = self._mask(query, kv_heads, scoring)
        if count < MANY_DECODES or not (self.writes_scores and may_write_scores(query, scoring)):
            return attention(query, key, value, mask, scoring).reshape(count, heads, -1)
        scores = scores_of(query.flatten(0, 1), key.flatten(0, 1), scoring.scaling)
        scores.view(*query.shape[:3], -1).add_(mask)
        return (scores.softmax(-1) @ value.flatten(0, 1)).view(count, heads, -1)

    def _mask(self, query: Tensor, kv_heads: int, scoring: Scoring) -> Tensor:
        """Return [n, 1, 1, width], or [n, kv heads, query heads of each, width]."""
        key = (scoring.window, scoring.alibi)
        if key not in self.masks:
            others = self.firsts[:, None, None] + torch.arange(self.width, device=query.device)
            mask = mask_out(self.positions, others, scoring, query.dtype)
            shared = 1 if scoring.alibi is None else kv_heads
            self.masks[key] = mask.view(len(query), shared, -1, self.width)
        return self.masks[key]


def rounded(blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, ...: few widths, of which at most a third is padding."""
    power = 1 << np.ceil(np.log2(blocks)).astype(np.int64)
    return np.where((power >= 4) & (blocks <= power * 3 // 4), power * 3 // 4, power)


def selection(places: npt.NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """Return an index for ascending `places`: a slice, which needs no copy, if they are consecutive."""
    first, last = int(places[0]), int(places[-1])
    if last - first == len(places) - 1:
        return slice(first, last + 1)
    return torch.from_numpy(places).to(device)
