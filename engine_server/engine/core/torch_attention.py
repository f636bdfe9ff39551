"""Paged attention in plain torch: gather each context's blocks, then attend. Right on every device."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.engine.core.attention import AttentionBackend, LayerShape, StepInputs


class Prefill(NamedTuple):
    """One sequence with several tokens in this step."""

    tokens: slice
    context: int
    block_ids: Tensor  # [blocks]


class DecodeGroup(NamedTuple):
    """Sequences with one token in this step, whose contexts round up to the same number of blocks.

    That number is the power of two at or above a sequence's own, so that the shape that a sequence is computed
    in depends on no neighbour, and at most half of what is gathered is masked.
    """

    rows: Tensor  # [n], which of the step's tokens
    contexts: Tensor  # [n]
    block_ids: Tensor  # [n * blocks]
    width: int  # tokens, rounded up


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
        self._prefills = list(self._plan_prefills(inputs))
        self._decodes = list(self._plan_decodes(inputs))
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, key)
        values.flatten(0, 1).index_copy_(0, self._slots, value)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for number, prefill in enumerate(self._prefills):
            context_keys = gather(keys, prefill.block_ids)[: prefill.context]
            context_values = gather(values, prefill.block_ids)[: prefill.context]
            output[prefill.tokens] = F.scaled_dot_product_attention(
                query[prefill.tokens].transpose(0, 1).unsqueeze(0),
                context_keys.transpose(0, 1).unsqueeze(0),
                context_values.transpose(0, 1).unsqueeze(0),
                attn_mask=self._prefill_mask(number, window),
                scale=scaling,
                enable_gqa=True,
            )[0].transpose(0, 1)
        for number, group in enumerate(self._decodes):
            output[group.rows] = self._decode(group, number, query[group.rows], keys, values, scaling, window)
        return output

    def _decode(
        self,
        group: DecodeGroup,
        number: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """One token a sequence. The query heads that share a KV head stand as that head's queries: GQA for free."""
        count, heads, dim = query.shape
        kv_heads = keys.shape[2]
        context_keys = gather(keys, group.block_ids).view(count, group.width, kv_heads, dim)
        context_values = gather(values, group.block_ids).view(count, group.width, kv_heads, -1)
        output = F.scaled_dot_product_attention(
            query.reshape(count, kv_heads, heads // kv_heads, dim),
            context_keys.transpose(1, 2),
            context_values.transpose(1, 2),
            attn_mask=self._decode_mask(group, number, window),
            scale=scaling,
        )
        return output.reshape(count, heads, -1)

    def _plan_prefills(self, inputs: StepInputs) -> Iterator[Prefill]:
        for sequence in np.flatnonzero(inputs.lengths > 1).tolist():
            start, context = int(inputs.starts[sequence]), int(inputs.contexts[sequence])
            blocks = -(-context // self.block_size)
            yield Prefill(
                slice(start, start + int(inputs.lengths[sequence])),
                context,
                torch.from_numpy(inputs.block_ids[sequence, :blocks]).to(self.device),
            )

    def _plan_decodes(self, inputs: StepInputs) -> Iterator[DecodeGroup]:
        sequences = np.flatnonzero(inputs.lengths == 1)
        blocks = -(-inputs.contexts[sequences] // self.block_size)
        widths = 1 << np.ceil(np.log2(blocks)).astype(np.int64)
        for width in np.unique(widths).tolist():
            members = sequences[widths == width]
            held = min(width, inputs.block_ids.shape[1])
            block_ids = np.zeros((len(members), width), dtype=np.int32)
            block_ids[:, :held] = inputs.block_ids[members, :held]
            yield DecodeGroup(
                torch.from_numpy(inputs.starts[members]).to(self.device),
                torch.from_numpy(inputs.contexts[members]).to(self.device),
                torch.from_numpy(block_ids.ravel()).to(self.device),
                width * self.block_size,
            )

    def _prefill_mask(self, number: int, window: int | None) -> Tensor:
        """[tokens, context], True where a token may look."""
        mask = self._masks.get((number, window))
        if mask is None:
            tokens, context, _ = self._prefills[number]
            own = torch.arange(context - (tokens.stop - tokens.start), context, device=self.device).unsqueeze(
                1
            )
            mask = self._masks[number, window] = visible(
                own, torch.arange(context, device=self.device), window
            )
        return mask

    def _decode_mask(self, group: DecodeGroup, number: int, window: int | None) -> Tensor:
        """[n, 1, 1, width], True where a token may look."""
        key = (len(self._prefills) + number, window)
        mask = self._masks.get(key)
        if mask is None:
            own = group.contexts.unsqueeze(1) - 1
            mask = self._masks[key] = visible(own, torch.arange(group.width, device=self.device), window)[
                :, None, None
            ]
        return mask


def gather(cache: Tensor, block_ids: Tensor) -> Tensor:
    """[tokens, kv heads, dim] of the blocks named."""
    return cache.index_select(0, block_ids).flatten(0, 1)


def visible(own: Tensor, others: Tensor, window: int | None) -> Tensor:
    """Which of `others` a token at position `own` sees: none after itself, none before its window."""
    mask = others <= own
    return mask if window is None else mask & (others > own - window)
