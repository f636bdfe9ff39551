"""Drafts by a smaller model."""

from collections.abc import Sequence

import numpy as np

from engine_server.core.draft_state.draft_cache import DraftCache
from engine_server.core.executor import Executor
from engine_server.core.scheduling.batch import Batch, Scheduled, num_tokens
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.chains import ChainDrafter, draft_chains
from engine_server.core.speculation.cost_model import Floats


class ModelDrafter(ChainDrafter):
    """A drafter with a model, which draws each draft as the target draws its token: with the same random number.

    So a model equal to the target drafts the target's own tokens, whatever the temperature. Blocks of a cached prefix
    that the model has computed for another request are not computed again.
    """

    def __init__(self, executor: Executor, longest: int, budget: int) -> None:
        """longest: the number of tokens that a sequence of the draft model may have; budget: those of a step."""
        super().__init__(executor)
        self._longest = longest
        self._budget = budget
        # Of a token in a large batch, by which those that are behind are priced.
        self.token_seconds = 0.0
        # By block: its latest allocation in which the model has computed all its tokens.
        self._filled = np.zeros(self._table.whole_pool.num_blocks, dtype=np.int64)

    def seconds(self, most_requests: int) -> Floats:
        measured = super().seconds(most_requests)
        self.token_seconds = float(measured[-1]) / most_requests
        return measured

    def debts(self, requests: Sequence[GenerationRequest]) -> list[float]:
        caches = [(request, self._cache(request)) for request in requests]
        # All tokens but the last one are debts, unless drafts in the cache come true.
        missing = [num_missing(request, cache) - 1 - len(cache.drafts) for request, cache in caches]
        return [max(0, count) * self.token_seconds for count in missing]

    def limits(self, requests: Sequence[GenerationRequest], most: int) -> list[int]:
        if not self._has_room(requests):
            return [0] * len(requests)
        return [
            0
            if request.spans  # the draft model has no such embeddings
            else max(0, min(most, self._longest - len(request.token_ids)))
            for request in requests
        ]

    def draft(self, requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        chosen = self._with_room(requests, lengths)
        drafts = draft_chains(requests, lengths, self._catch_up(chosen), self._executor.draft_tokens)
        by_row = {request.row: own for request, own in zip(requests, drafts, strict=True)}
        for request in chosen:
            assert request.row is not None
            cache = self._cache(request)
            cache.keep(by_row[request.row][:-1], self._table, request.row)  # the last one is not in the cache
            self._mark_filled(cache, request.row)
        return drafts

    def _catch_up(self, requests: Sequence[GenerationRequest]) -> Batch:
        """Return the tokens that the model has yet to compute, as many as a step may have.

        A request whose last token is not among them gets no drafts yet.
        """
        batch: Batch = []
        behind = [(request, self._cache(request)) for request in requests]
        for request, cache in behind:
            assert request.row is not None
            cache.confirm(request.token_ids, self._table, request.row)
            self._skip_filled(request, cache)
        for request, cache in sorted(behind, key=lambda pair: num_missing(*pair)):
            missing = num_missing(request, cache)
            count = min(missing, self._budget - num_tokens(batch))
            if count:
                assert request.row is not None
                samples = count == missing
                batch.append(Scheduled(request, request.row, cache.computed, count, samples))
                cache.computed += count
        return batch

    def _cache(self, request: GenerationRequest) -> DraftCache:
        """Return what the model has computed of a running request."""
        if request.draft_cache is None:
            request.draft_cache = DraftCache()
            self._skip_filled(request, request.draft_cache)
        return request.draft_cache

    def _mark_filled(self, cache: DraftCache, row: int) -> None:
        """Remember the blocks that are full of computed tokens."""
        size, pool = self._table.block_size, self._table.whole_pool
        blocks = self._table.first_blocks(row, cache.computed // size * size)
        self._filled[blocks] = pool.allocations[blocks]

    def _skip_filled(self, request: GenerationRequest, cache: DraftCache) -> None:
        """Count the tokens in blocks that the model has filled, for this request or another, as computed."""
        assert request.row is not None
        size, pool = self._table.block_size, self._table.whole_pool
        blocks = self._table.first_blocks(request.row, (len(request.token_ids) - 1) // size * size)
        blank = np.flatnonzero(self._filled[blocks] != pool.allocations[blocks])
        count = int(blank[0]) if len(blank) else len(blocks)
        cache.computed = max(cache.computed, count * size)


def num_missing(request: GenerationRequest, cache: DraftCache) -> int:
    """Return the number of tokens that the draft model has yet to compute before it can draft."""
    return len(request.token_ids) - cache.computed
