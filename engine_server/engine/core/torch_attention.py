"""Paged attention in plain torch: gather each context's blocks, then attend. Right on every device."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.engine.core.attention import AttentionBackend, LayerShape, StepInputs

Masks = dict[int | None, Tensor]  # by window; all layers with one window share one mask


class TorchAttention(AttentionBackend):
    """One K and one V tensor a layer: [blocks, block size, kv heads, dim]."""

    def __init__(
        self,
        layers: list[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def cache(shape: LayerShape, dim: int) -> Tensor:
            # Zeros, since masked slots are multiplied by a weight of 0, which a NaN would survive.
            return torch.zeros(num_blocks, block_size, shape.kv_heads, dim, dtype=dtype, device=device)

        self.block_size = block_size
        self.device = device
        self.keys = [cache(shape, shape.key_dim) for shape in layers]
        self.values = [cache(shape, shape.value_dim) for shape in layers]

    def begin(self, inputs: StepInputs) -> None:
        self._slots = torch.from_numpy(inputs.slots).to(self.device)
        self._parts: list[Prefill | DecodeGroup] = [*self._prefills(inputs), *self._decodes(inputs)]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, key)
        values.flatten(0, 1).index_copy_(0, self._slots, value)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for part in self._parts:
            output[part.tokens] = part.attend(query[part.tokens], keys, values, scaling, window)
        return output

    def _prefills(self, inputs: StepInputs) -> Iterator["Prefill"]:
        for sequence in np.flatnonzero(inputs.lengths > 1).tolist():
            start, context = int(inputs.starts[sequence]), int(inputs.contexts[sequence])
            blocks = inputs.block_ids[sequence, : -(-context // self.block_size)]
            tokens = slice(start, start + int(inputs.lengths[sequence]))
            yield Prefill(tokens, context, torch.from_numpy(blocks).to(self.device))

    def _decodes(self, inputs: StepInputs) -> Iterator["DecodeGroup"]:
        sequences = np.flatnonzero(inputs.lengths == 1)
        widths = rounded(-(-inputs.contexts[sequences] // self.block_size))
        for width in np.unique(widths).tolist():
            members = sequences[widths == width]
            blocks = np.zeros((len(members), width), dtype=np.int32)
            blocks[:, : inputs.block_ids.shape[1]] = inputs.block_ids[members, :width]
            yield DecodeGroup(
                selection(inputs.starts[members], self.device),
                torch.from_numpy(inputs.contexts[members]).to(self.device),
                torch.from_numpy(blocks.ravel()).to(self.device),
                width * self.block_size,
            )


@dataclass(slots=True)
class Prefill:
    """One sequence with several tokens in this step."""

    tokens: slice
    context: int
    block_ids: Tensor  # [blocks]
    masks: Masks = field(default_factory=dict)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """query: [tokens, query heads, dim], the result alike."""
        mask = self._mask(query, window)
        output = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            gather(keys, self.block_ids)[: self.context].transpose(0, 1).unsqueeze(0),
            gather(values, self.block_ids)[: self.context].transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1)

    def _mask(self, query: Tensor, window: int | None) -> Tensor | None:
        """[tokens, context]; None where plain causality says the same, which is quicker."""
        if len(query) == self.context and (window is None or window >= self.context):
            return None
        if window not in self.masks:
            positions = torch.arange(self.context, device=query.device)
            self.masks[window] = mask_out(positions[-len(query) :, None], positions, window, query.dtype)
        return self.masks[window]


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one token in this step, whose contexts round up to the same number of blocks.

    The rounding looks at a sequence's own length alone, so no neighbour changes the shape that it is computed in.
    """

    tokens: slice | Tensor  # which of the step's tokens
    contexts: Tensor  # [n]
    block_ids: Tensor  # [n * blocks]
    width: int  # tokens of context, rounded up
    masks: Masks = field(default_factory=dict)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """query: [n, query heads, dim], the result alike.

        The query heads that share a KV head stand as that head's queries: grouped-query attention for free.
        """
        count, heads, dim = query.shape
        kv_heads = keys.shape[2]
        output = F.scaled_dot_product_attention(
            query.reshape(count, kv_heads, heads // kv_heads, dim),
            gather(keys, self.block_ids).view(count, self.width, kv_heads, -1).transpose(1, 2),
            gather(values, self.block_ids).view(count, self.width, kv_heads, -1).transpose(1, 2),
            attn_mask=self._mask(query, window),
            scale=scaling,
        )
        return output.reshape(count, heads, -1)

    def _mask(self, query: Tensor, window: int | None) -> Tensor:
        """[n, 1, 1, width]"""
        if window not in self.masks:
            positions = torch.arange(self.width, device=query.device)
            mask = mask_out(self.contexts[:, None] - 1, positions, window, query.dtype)
            self.masks[window] = mask[:, None, None]
        return self.masks[window]


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


def gather(cache: Tensor, block_ids: Tensor) -> Tensor:
    """[tokens, kv heads, dim] of the blocks named."""
    return cache.index_select(0, block_ids).flatten(0, 1)


def mask_out(own: Tensor, others: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """What to add to a token's scores: 0 for the tokens that it sees, -inf for those after it or before its window."""
    hidden = others > own
    if window is not None:
        hidden = hidden | (others <= own - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=own.device).masked_fill_(hidden, -torch.inf)
