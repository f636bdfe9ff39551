"""Drafts by a smaller model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.executor import Executor
from engine_server.core.scheduling.batch import Batch, Scheduled, num_tokens
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.chains import ChainDrafter, draft_chains
from engine_server.core.speculation.cost_model import Floats
from engine_server.modeling.attention.interface import IntArray


@dataclass(slots=True)
class Progress:
    """The part of a running request that the draft model has computed."""

    request: GenerationRequest
    # Number of the request's tokens in the draft model's cache.
    computed: int = 0
    # Drafts in the cache after them.
    drafts: list[int] = field(default_factory=list)
    # The allocations of the blocks that hold them.
    allocations: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def missing(self) -> int:
        """Number of tokens that the draft model has yet to compute before it can draft."""
        return len(self.request.token_ids) - self.computed

    @property
    def debt(self) -> int:
        """Number of tokens that the draft model has yet to compute besides the last one, if its drafts came true."""
        return max(0, self.missing - 1 - len(self.drafts))

    def blocks(self, table: BlockTable, count: int) -> IntArray:
        """Return the ids of the blocks that hold the request's first `count` tokens."""
        columns = -(-count // table.block_size)
        return table.ids[table.windows.index(None), self.request.row, :columns].astype(np.int64)

    def confirm(self, table: BlockTable) -> None:
        """Count the drafts that have become the request's tokens, and drop what a preemption has taken."""
        token_ids = self.request.token_ids
        for draft in self.drafts:
            if token_ids[self.computed] != draft or self.computed == len(token_ids) - 1:
                break
            self.computed += 1
        blocks = self.blocks(table, len(self.allocations) * table.block_size)
        changed = np.flatnonzero(table.whole_pool.allocations[blocks] != self.allocations)
        if len(changed):
            self.computed = min(self.computed, int(changed[0]) * table.block_size)

    def keep(self, table: BlockTable, drafts: list[int]) -> None:
        """Remember the drafts in the cache, and the allocations of its blocks."""
        self.drafts = drafts
        self.allocations = table.whole_pool.allocations[self.blocks(table, self.computed + len(drafts))]


class ModelDrafter(ChainDrafter):
    """A drafter with a model, which draws each draft as the target draws its token: with the same random number.

    So a model equal to the target drafts the target's own tokens, whatever the temperature. Blocks of a cached prefix
    that the model has computed for another request are not computed again.
    """

    def __init__(self, executor: Executor, longest: int) -> None:
        """longest: the number of tokens that a sequence of the draft model may have."""
        super().__init__(executor)
        self._longest = longest
        self._budget = executor.runner.config.scheduler_config.max_num_batched_tokens
        # Of a token in a large batch, by which those that are behind are priced.
        self.token_seconds = 0.0
        # By row of the block table.
        self._progress: dict[int, Progress] = {}
        # By block: its latest allocation in which the model has computed all its tokens.
        self._filled = np.zeros(self._table.whole_pool.num_blocks, dtype=np.int64)

    def seconds(self, most_requests: int) -> Floats:
        measured = super().seconds(most_requests)
        self.token_seconds = float(measured[-1]) / most_requests
        return measured

    def debts(self, requests: Sequence[GenerationRequest]) -> list[float]:
        return [self._of(request).debt * self.token_seconds for request in requests]

    def limits(self, requests: Sequence[GenerationRequest], most: int) -> list[int]:
        if not self._has_room(requests):
            return [0] * len(requests)
        return [
            0
            if request.num_virtual
            or request.prompt_embeds is not None  # the draft model has no such embeddings
            else max(0, min(most, self._longest - len(request.token_ids)))
            for request in requests
        ]

    def draft(self, requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        chosen = self._with_room(requests, lengths)
        rows = {request.row for request in chosen}
        drafts = draft_chains(requests, lengths, self._catch_up(chosen), self._executor.draft_logits)
        for request, own in zip(requests, drafts, strict=True):
            if request.row in rows:
                progress = self._of(request)
                progress.keep(self._table, own[:-1])  # the last one is not in the cache
                self._mark_filled(progress)
        return drafts

    def _catch_up(self, requests: Sequence[GenerationRequest]) -> Batch:
        """Return the tokens that the model has yet to compute, as many as a step may have.

        A request whose last token is not among them gets no drafts yet.
        """
        batch: Batch = []
        behind = [self._of(request) for request in requests]
        for progress in behind:
            progress.confirm(self._table)
            self._skip_filled(progress)
        for progress in sorted(behind, key=lambda one: one.missing):
            request, missing = progress.request, progress.missing
            count = min(missing, self._budget - num_tokens(batch))
            if count:
                assert request.row is not None
                samples = count == missing
                batch.append(Scheduled(request, request.row, progress.computed, count, samples))
                progress.computed += count
        return batch

    def _mark_filled(self, progress: Progress) -> None:
        """Remember the blocks that are full of computed tokens."""
        size, pool = self._table.block_size, self._table.whole_pool
        blocks = progress.blocks(self._table, progress.computed // size * size)
        self._filled[blocks] = pool.allocations[blocks]

    def _skip_filled(self, progress: Progress) -> None:
        """Count the tokens in blocks that the model has filled, for this request or another, as computed."""
        size, pool = self._table.block_size, self._table.whole_pool
        blocks = progress.blocks(self._table, (len(progress.request.token_ids) - 1) // size * size)
        blank = np.flatnonzero(self._filled[blocks] != pool.allocations[blocks])
        count = int(blank[0]) if len(blank) else len(blocks)
        progress.computed = max(progress.computed, count * size)

    def _of(self, request: GenerationRequest) -> Progress:
        assert request.row is not None
        progress = self._progress.get(request.row)
        if progress is None or progress.request is not request:
            progress = self._progress[request.row] = Progress(request)
            self._skip_filled(progress)
        return progress
