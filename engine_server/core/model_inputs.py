"""What the model is told of a step: the scheduler's batch as plain numbers."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.heads.prompt_logprobs import PromptChunk, prompt_chunks
from engine_server.core.scheduling.scheduler import UNKNOWN, Batch
from engine_server.modeling.attention.interface import IntArray, StepInputs
from engine_server.modeling.staging import TableChanges

EMPTY = np.zeros(0, dtype=np.int64)
NOTHING = StepInputs(EMPTY, EMPTY, [], EMPTY, EMPTY, EMPTY, [], EMPTY)


class ModelInputs(NamedTuple):
    """All that the model has to be told of one step: nothing but numbers, so that other ranks can be told too."""

    step: StepInputs
    sampling: IntArray  # [n], which of the sequences sample
    chunks: list[IntArray]  # [at most prompt_logprobs.ROWS] each: rows whose logits are wanted beside
    token_type_ids: list[int]  # [T], or none
    embeds: list[tuple[int, Tensor]]  # what stands for tokens: from which row on, [rows, hidden]
    # Cells of the block table that changed since the last step.
    table_changes: TableChanges


def model_inputs(batch: Batch, table: BlockTable, stretched: bool) -> tuple[ModelInputs, list[PromptChunk]]:
    """One step's, and whom its chunks are for. stretched: whether a rope depends on more than positions."""
    step = flatten(batch, table, stretched)
    chunks = prompt_chunks(batch, step.starts)
    sampling = np.flatnonzero([scheduled.samples for scheduled in batch])
    inputs = ModelInputs(
        step, sampling, [chunk.rows for chunk in chunks], *extras(batch, step.starts), table.take_changes()
    )
    return inputs, chunks


def extras(batch: Batch, starts: IntArray) -> tuple[list[int], list[tuple[int, Tensor]]]:
    """The batch's token types and embeddings, where a request has any."""
    requests = [scheduled.request for scheduled in batch]
    token_types: list[int] = []
    if any(request.token_type_ids for request in requests):
        token_types = [kind for one in requests for kind in one.token_type_ids or [0] * one.pending]
    embeds = [
        (start, request.prompt_embeds[request.computed :][:count])
        for start, (request, count) in zip(starts.tolist(), batch, strict=True)
        if request.prompt_embeds is not None
    ]
    return token_types, embeds


def flatten(batch: Batch, table: BlockTable, stretched: bool) -> StepInputs:
    """Lay the batch's tokens one after the other, and find where each one's K and V go."""
    rows = np.array([scheduled.request.row for scheduled in batch])
    lengths = np.array([scheduled.num_tokens for scheduled in batch])
    computed = np.array([scheduled.request.computed for scheduled in batch])
    starts = np.cumsum(lengths) - lengths
    sequence = np.repeat(np.arange(len(batch)), lengths)
    positions = np.arange(len(sequence)) - starts[sequence] + computed[sequence]
    block_size = table.block_size
    blocks = table.ids[:, rows[sequence], positions // block_size].astype(np.int64)
    token_ids = np.fromiter(
        (
            token
            for request, count in batch
            for token in request.token_ids[request.computed : request.computed + count]
        ),
        dtype=np.int64,
        count=len(sequence),
    )
    unknown = token_ids == UNKNOWN
    token_ids[unknown] = -1 - rows[sequence[unknown]]
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=list(blocks * block_size + positions % block_size),
        starts=starts,
        lengths=lengths,
        contexts=computed + lengths,
        tables=(),  # each rank has its own copy
        rows=rows,
        regimes=np.array([scheduled.request.rope_regime for scheduled in batch]) if stretched else None,
    )
