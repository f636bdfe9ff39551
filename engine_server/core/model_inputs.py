"""The model's inputs for a step: the scheduler's batch as numbers and tensors."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.sampling.prompt_logprobs import PromptChunk, PromptPart, prompt_chunks
from engine_server.core.scheduling.batch import Batch, Scheduled
from engine_server.core.scheduling.request import UNKNOWN
from engine_server.core.span import Span
from engine_server.modeling.attention.interface import IntArray, StepInputs
from engine_server.modeling.graphs.staging import TableChanges

EMPTY = np.zeros(0, dtype=np.int64)


class ModelInputs(NamedTuple):
    """A step as numbers and tensors alone, so that it can be sent to other ranks. T tokens, n sequences that sample."""

    step: StepInputs
    # [n], indices of the sequences that sample.
    sampling: IntArray
    # [at most prompt_logprobs.ROWS] each: tokens of the step whose logits are wanted for prompt log-probabilities.
    chunks: list[IntArray]
    # [T], or empty.
    token_type_ids: list[int]
    # Embeddings that replace those of the step's tokens, of which each span's start is an index.
    embeds: list[Span]
    # Cells of the block table that changed since the last step.
    table_changes: TableChanges
    # [T], or empty: the index of the hidden state from which a draft head continues at each token.
    sources: IntArray = EMPTY

    @property
    def has_tokens_alone(self) -> bool:
        """True if the model is given nothing but tokens, so that a captured step can compute them."""
        return not self.token_type_ids and not self.embeds

    @property
    def is_plain_decode(self) -> bool:
        """True if each sequence has one token, and nothing but that, and samples."""
        count = len(self.step.starts)
        decodes = count == len(self.step.token_ids) == len(self.sampling)
        return decodes and not self.chunks and self.has_tokens_alone


def model_inputs(batch: Batch, table: BlockTable, stretched: bool) -> tuple[ModelInputs, list[PromptChunk]]:
    """Return a step's inputs, and the prompt tokens of each of its `chunks`.

    stretched: the model's rope depends on more than positions.
    """
    step = flatten(batch, table, stretched)
    prompts = [
        PromptPart(start, scheduled)
        for start, scheduled in zip(step.starts.tolist(), batch, strict=True)
        if scheduled.start < scheduled.request.num_prompt
    ]
    chunks = prompt_chunks(prompts)
    sampling = sampling_indexes(batch)
    inputs = ModelInputs(
        step,
        sampling,
        [chunk.rows for chunk in chunks],
        token_types(batch) if prompts else [],
        [span for part in prompts for span in embeddings(part.scheduled, part.first)],
        table.take_changes(),
    )
    return inputs, chunks


def draft_inputs(batch: Batch, table: BlockTable, sources: IntArray | None) -> ModelInputs:
    """Return a step's inputs for a draft model or head, which has no adapters and whose prompts are tokens.

    sources: for a draft head, which takes each token at the position before its own, with the hidden state of there.
    """
    shift = 0 if sources is None else 1
    step = flatten(batch, table, stretched=False, shift=shift)._replace(adapters=None)
    sampling = sampling_indexes(batch)
    changes = table.take_changes()
    return ModelInputs(step, sampling, [], [], [], changes, EMPTY if sources is None else sources)


def sampling_indexes(batch: Batch) -> IntArray:
    """Return the indices of the sequences that sample."""
    return np.array([index for index, one in enumerate(batch) if one.samples], dtype=np.int64)


def token_types(batch: Batch) -> list[int]:
    """Return the type of each token, or none if no request has any."""
    types: list[int] = []
    if any(one.request.token_type_ids for one in batch):
        for scheduled in batch:
            own = scheduled.request.token_type_ids or [0] * scheduled.request.num_prompt
            types += own[scheduled.start : scheduled.end]
    return types


def embeddings(scheduled: Scheduled, first: int) -> Iterator[Span]:
    """Yield the spans in a request's part of a step. first: index of the part's first token in the step."""
    for span in scheduled.request.spans:
        if span.overlaps(scheduled.start, scheduled.end):
            own = span.within(scheduled.start, scheduled.end)
            yield own._replace(start=first + own.start - scheduled.start)


def flatten(batch: Batch, table: BlockTable, stretched: bool, shift: int = 0) -> StepInputs:
    """Concatenate the batch's tokens, and compute the cache slot of each one's K and V.

    shift: the number of positions that each token is taken before its own.
    """
    rows = [one.row for one in batch]
    lengths = [one.num_tokens for one in batch]
    contexts = [one.start + one.num_tokens - shift for one in batch]
    pieces = [one.request.token_ids[one.start : one.start + one.num_tokens] for one in batch]
    loras = [one.request.adapters.lora for one in batch]
    step = StepInputs.of(
        rows,
        lengths,
        contexts,
        len(table.ids),
        token_ids=list(chain.from_iterable(pieces)),
        adapters=[one.request.adapters.slot for one in batch] if any(loras) else None,
        regimes=np.array([one.request.rope_regime for one in batch]) if stretched else None,
    )
    step.place(table.ids, table.block_size)
    owners = step.rows.repeat(step.lengths)
    np.putmask(step.token_ids, step.token_ids == UNKNOWN, -1 - owners)
    return step
