"""Paged attention in plain torch: gather each context's blocks, then attend. Right on every device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.attention.interface import AttentionBackend, IntArray, Pages, Scoring, StepInputs
from engine_server.modeling.memory.cache_layout import Layout, quantised

MOST_SCORES = 1 << 26  # held at once where they must be written down
# A CPU is up to twice as quick in bfloat16 if scores are written down: of so many decodes, of so many in a prompt, and
# then of so many rows at a time, which still lie in its caches when they are used.
MANY_DECODES = 16
MANY_SCORES = 1 << 12
ROWS = 128

Masks = dict[tuple[object, ...], Tensor]  # layers that hide and favour the same tokens share one mask


class TorchAttention(AttentionBackend):
    """One K and one V tensor for each of the layout's: [blocks, kv heads, block size, dim].

    A head's tokens lie together, so that what is gathered can be multiplied as it is.
    """

    def __init__(
        self, layout: Layout, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self.device = device
        self.halved = dtype in (torch.bfloat16, torch.float16)  # bits may follow from what shares a step
        # Masked slots are multiplied by a weight of 0, which a NaN in new memory would survive: these are zeros.
        self.keys, self.values = layout.allocate(num_blocks, block_size, dtype, device, heads_first=True)

    def begin(self, inputs: StepInputs) -> None:
        self._inputs = inputs
        self._slots = [
            Slots(torch.from_numpy(np.ascontiguousarray(slots)).to(self.device), self.block_size)
            for slots in inputs.slots
        ]
        self._parts: dict[int, list[Part]] = {}

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        assert layer is not None
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values = self.keys[tensor], self.values[tensor]
        self.write(kind, keys, key)
        self.write(kind, values, value)
        parts = self.parts(kind, query, values, scoring)
        if len(parts) == 1:  # has all tokens
            return parts[0].attend(query, keys, values, scoring)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for part in parts:
            output[part.tokens] = part.attend(query[part.tokens], keys, values, scoring)
        return output

    def write(self, kind: int, pages: Pages, given: Tensor) -> None:
        """Put the step's K or V [T, kv heads, dim] into a layer's cache."""
        rows, given = self._slots[kind].rows(given.shape[1]), given.flatten(0, 1)
        if pages.scales is None:
            pages.data.flatten(0, 2).index_copy_(0, rows, given)
            return
        data, scales = quantised(given)
        pages.data.view(torch.uint8).flatten(0, 2).index_copy_(0, rows, data.view(torch.uint8))
        pages.scales.flatten(0, 2).index_copy_(0, rows, scales)

    def parts(self, kind: int, query: Tensor, values: Pages, scoring: Scoring) -> list["Part"]:
        """What the step is cut into for layers of one kind: together they have all its tokens."""
        if kind not in self._parts:
            self._parts[kind] = [*self._prefills(self._inputs, kind), *self._decodes(self._inputs, kind)]
        return self._parts[kind]

    def _prefills(self, inputs: StepInputs, kind: int) -> Iterator["Prefill"]:
        firsts, contexts = self._seen(inputs, kind)
        for sequence in np.flatnonzero(inputs.lengths > 1).tolist():
            start, first, context = int(inputs.starts[sequence]), firsts[sequence], int(contexts[sequence])
            row = inputs.rows[sequence]
            blocks = inputs.tables[kind][row, first : first - (-context // self.block_size)]
            tokens = slice(start, start + int(inputs.lengths[sequence]))
            yield Prefill(Sequence(context), tokens, Blocks(torch.from_numpy(blocks[None]).to(self.device)))

    def _decodes(self, inputs: StepInputs, kind: int) -> Iterator["DecodeGroup"]:
        firsts, contexts = self._seen(inputs, kind)
        sequences = np.flatnonzero(inputs.lengths == 1)
        held = -(-contexts // self.block_size)
        widths = rounded(held[sequences])
        for most in np.unique(widths).tolist():
            members = sequences[widths == most]
            width = int(held[members].max()) if self.halved else most
            # What rounds a width up is the sequence's own last block: a neighbour's NaN would survive the mask.
            columns = np.minimum(np.arange(width), held[members, None] - 1) + firsts[members, None]
            blocks = inputs.tables[kind][inputs.rows[members, None], columns]
            yield DecodeGroup(
                selection(inputs.starts[members], self.device),
                torch.from_numpy(contexts[members]).to(self.device),
                Blocks(torch.from_numpy(blocks).to(self.device)),
                width * self.block_size,
            )

    def _seen(self, inputs: StepInputs, kind: int) -> tuple[IntArray, IntArray]:
        """[S]: the first block that each sequence's window needs, and how many tokens lie from there on."""
        window = self.layout.windows[kind]
        if window is None:
            return np.zeros_like(inputs.contexts), inputs.contexts
        first = np.maximum(inputs.contexts - inputs.lengths + 1 - window, 0) // self.block_size
        return first, inputs.contexts - first * self.block_size


class StepAttention(AttentionBackend):
    """Attends within the step alone and keeps nothing: for encoders, whose prompts are never cut."""

    def begin(self, inputs: StepInputs) -> None:
        spans = zip(inputs.starts.tolist(), inputs.lengths.tolist(), strict=True)
        self._sequences = [(slice(start, start + length), Sequence(length)) for start, length in spans]

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for own, sequence in self._sequences:
            queries, keys, values = (part[own].transpose(0, 1) for part in (query, key, value))
            output[own] = sequence.attend(queries, keys, values, scoring)
        return output


@dataclass(slots=True)
class Sequence:
    """One sequence's last tokens over all of it."""

    context: int
    masks: Masks = field(default_factory=dict)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """query: [query heads, tokens, dim]; keys, values: [kv heads, context, dim]; [tokens, query heads, dim]."""
        if writes_scores(query, scoring) and query.shape[1] * self.context >= MANY_SCORES:
            return self._attend_by_rows(query, keys, values, scoring)
        query, keys, values = (tensor.unsqueeze(0) for tensor in (query, keys, values))
        mask = self._mask(query, scoring)
        if mask is None or scoring.fused:
            return attention(query, keys, values, mask, scoring)[0].transpose(0, 1)
        rows = 1 + MOST_SCORES // (query.shape[1] * self.context)
        parts = zip(torch.split(query, rows, 2), torch.split(mask, rows, -2), strict=True)
        output = torch.cat([attention(part, keys, values, mask, scoring) for part, mask in parts], 2)
        return output[0].transpose(0, 1)

    def _attend_by_rows(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """As `attend`: some tokens at a time, over no more keys than they may see."""
        heads, tokens, dim = query.shape
        output = query.new_empty(tokens, heads, values.shape[-1])
        mask = None if self._plain(scoring) else self._mask(query.unsqueeze(0), scoring)
        for start in range(0, tokens, ROWS):
            rows = query[:, start : start + ROWS]
            stop = start + rows.shape[1]
            seen = self.context - tokens + stop if scoring.causal else self.context
            scores = scores_of(rows.reshape(len(keys), -1, dim), keys[:, :seen], scoring.scaling)
            by_head = scores.view(heads, -1, seen)
            if mask is not None:
                by_head += mask[0, :, start:stop, :seen]
            elif scoring.causal:
                by_head[..., start - stop :] += future(stop - start, query.dtype)
            attended = scores.softmax(-1) @ values[:, :seen]
            output[start:stop] = attended.view(heads, stop - start, -1).transpose(0, 1)
        return output

    def _plain(self, scoring: Scoring) -> bool:
        """Whether causality hides tokens, or nothing, and nothing favours any."""
        narrow = scoring.window is not None and scoring.window < self.context
        return not narrow and scoring.alibi is None and scoring.relative_bias is None

    def _mask(self, query: Tensor, scoring: Scoring) -> Tensor | None:
        """[1, 1 or query heads, tokens, context]; None where the kernel knows without, which is quicker."""
        if scoring.relative_bias is not None:
            return scoring.relative_bias[..., : self.context, : self.context]
        count, window = query.shape[2], scoring.window
        if self._plain(scoring) and (not scoring.causal or (scoring.fused and count == self.context)):
            return None
        key = (window, scoring.alibi, scoring.causal)
        if key not in self.masks:
            positions = torch.arange(self.context, device=query.device)
            mask = mask_out(positions[-count:], positions, scoring, query.dtype)
            self.masks[key] = mask.transpose(0, 1)[None]  # torch's fused kernel wants four dims
        return self.masks[key]


@dataclass(slots=True)
class Slots:
    """Where a step's K and V go."""

    places: Tensor  # [T], block id * block size + offset
    block_size: int
    by_heads: dict[int, Tensor] = field(default_factory=dict)

    def rows(self, kv_heads: int) -> Tensor:
        """[T * kv heads], each token's heads one after the other: rows of a cache, flat but for the dim."""
        if kv_heads not in self.by_heads:
            blocks, offsets = self.places // self.block_size, self.places % self.block_size
            heads = torch.arange(kv_heads, device=self.places.device)
            rows = (blocks[:, None] * kv_heads + heads) * self.block_size + offsets[:, None]
            self.by_heads[kv_heads] = rows.flatten()
        return self.by_heads[kv_heads]


@dataclass(slots=True)
class Blocks:
    """The blocks of some sequences, as many of each."""

    ids: Tensor  # [n, blocks]
    by_heads: dict[int, Tensor] = field(default_factory=dict)

    def gather(self, pages: Pages, dtype: torch.dtype) -> Tensor:
        """[n, kv heads, tokens, dim] of what has [all blocks, kv heads, block size, dim]."""
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
    """Some of a step's tokens."""

    tokens: slice | Tensor  # which

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        """query: [tokens, query heads, dim], the result alike; keys, values: the layer's cache."""


@dataclass(slots=True)
class Prefill:
    """One sequence with several tokens in this step."""

    sequence: Sequence
    tokens: slice | Tensor
    blocks: "Blocks"  # [1, blocks]

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        context = self.sequence.context
        key, value = (self.blocks.gather(pages, query.dtype)[0, :, :context] for pages in (keys, values))
        return self.sequence.attend(query.transpose(0, 1), key, value, scoring)


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one token in this step, whose contexts round up to the same number of blocks.

    In float32 that is the number they are computed with. It follows from a sequence's own length alone, so that no
    neighbour changes the shape that it is computed in.
    """

    tokens: slice | Tensor  # which of the step's tokens
    contexts: Tensor  # [n]
    blocks: "Blocks"  # [n, blocks]
    width: int  # tokens of the blocks
    masks: Masks = field(default_factory=dict)

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        """query: [n, query heads, dim], the result alike.

        The query heads that share a KV head stand as that head's queries: grouped-query attention for free.
        """
        count, heads, dim = query.shape
        kv_heads = keys.data.shape[1]
        query = query.reshape(count, kv_heads, heads // kv_heads, dim)
        key, value = (self.blocks.gather(pages, query.dtype) for pages in (keys, values))
        mask = self._mask(query, kv_heads, scoring)
        if count < MANY_DECODES or not writes_scores(query, scoring):
            return attention(query, key, value, mask, scoring).reshape(count, heads, -1)
        scores = scores_of(query.flatten(0, 1), key.flatten(0, 1), scoring.scaling)
        scores.view(*query.shape[:3], -1).add_(mask)
        return (scores.softmax(-1) @ value.flatten(0, 1)).view(count, heads, -1)

    def _mask(self, query: Tensor, kv_heads: int, scoring: Scoring) -> Tensor:
        """[n, 1, 1, width], or [n, kv heads, query heads of each, width]."""
        key = (scoring.window, scoring.alibi)
        if key not in self.masks:
            positions = torch.arange(self.width, device=query.device)
            mask = mask_out(self.contexts - 1, positions, scoring, query.dtype)
            shared = 1 if scoring.alibi is None else kv_heads
            self.masks[key] = mask.view(len(query), shared, -1, self.width)
        return self.masks[key]


def rounded(blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Up to the next of 1, 2, 3, 4, 6, 8, 12, 16, ...: few widths, and at most a third of one is padding."""
    power = 1 << np.ceil(np.log2(blocks)).astype(np.int64)
    return np.where((power >= 4) & (blocks <= power * 3 // 4), power * 3 // 4, power)


def selection(places: npt.NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """An index for ascending places: a slice, which copies nothing, where they are neighbours."""
    first, last = int(places[0]), int(places[-1])
    if last - first == len(places) - 1:
        return slice(first, last + 1)
    return torch.from_numpy(places).to(device)


def writes_scores(query: Tensor, scoring: Scoring) -> bool:
    """Where that may be quicker; never in float32, where a result must not follow from what shares a step."""
    return scoring.fused and query.device.type == "cpu" and query.dtype != torch.float32


@cache
def future(count: int, dtype: torch.dtype) -> Tensor:
    """[count, count] on the CPU: -inf for what comes after each of so many neighbours, else 0."""
    return torch.full((count, count), -torch.inf, dtype=dtype).triu_(1)


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    """query: [n, heads, tokens, dim], the result alike; keys, values: [n, kv heads, context, dim].

    `mask` is added to the scores [n, heads, tokens, context]; without one plain causality holds, or nothing.
    """
    if scoring.fused:
        return F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and scoring.causal,
            scale=scoring.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    count, heads, tokens, dim = query.shape
    kv_heads, context = keys.shape[1:3]
    scores = (query.reshape(count, kv_heads, -1, dim) @ keys.mT).view(count, heads, tokens, context).float()
    scores = scores * scoring.scaling
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if mask is not None:
        scores = scores + mask
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(heads, -1, 1).expand(count, -1, tokens, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., :context].to(values.dtype)
    return (weights.reshape(count, kv_heads, -1, context) @ values).view(count, heads, tokens, -1)


def scores_of(query: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """[n, rows, context] of query [n, rows, dim] and keys [n, context, dim], to be written over."""
    return torch.baddbmm(query.new_empty(1, 1, 1), query, keys.mT, beta=0, alpha=scaling)


def mask_out(own: Tensor, others: Tensor, scoring: Scoring, dtype: torch.dtype) -> Tensor:
    """What to add to tokens' scores: -inf for what they don't see, else 0, less with ALiBi.

    own: the tokens' positions [n]; others: those of the keys [width]; the result: [n, 1 or query heads, width].
    """
    distance = own[:, None, None] - others
    hidden = distance < 0 if scoring.causal else torch.zeros_like(distance, dtype=torch.bool)
    if scoring.window is not None:
        hidden = hidden | (distance.abs() >= scoring.window)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=own.device).masked_fill_(hidden, -torch.inf)
    return mask if scoring.alibi is None else mask - (scoring.alibi[:, None] * distance).to(dtype)
