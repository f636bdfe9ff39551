"""Drafts by a head on the target's hidden states."""

from collections.abc import Sequence

import msgspec
import numpy as np

from engine_server.core.draft_state.draft_source import DraftSource
from engine_server.core.executor import Executor
from engine_server.core.scheduling.batch import Batch, Scheduled, by_request, num_tokens, sampled_part
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.core.speculation.chains import ChainDrafter, draft_chains


class HeadDrafter(ChainDrafter):
    """A drafter with a draft head, which takes each token together with the target's hidden state before it.

    The target's states are those of its latest step, so a request's drafts come right after its own step. Positions of
    steps without drafts stay blank in the head's cache, or have what was there before: drafts get worse by it, and the
    estimate of their acceptance shows it.
    """

    follows_prompts = True

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        # Number of the target's steps.
        self._step = 0
        # By row of the block table: the index of the hidden state before the next tokens of the row's request.
        self._sources: dict[int, int] = {}

    def observe(self, batch: Batch) -> None:
        self._step, first = self._step + 1, 0
        for request, parts in by_request(batch):
            request.draft_source = DraftSource(self._step, parts[0].start, first)
            first += num_tokens(parts)

    def limits(self, requests: Sequence[GenerationRequest], most: int) -> list[int]:
        if not self._has_room(requests):
            return [0] * len(requests)
        return [0 if self._source(request) is None else most for request in requests]

    def follow(self, requests: Sequence[Request]) -> None:
        batch = [msgspec.structs.replace(part, samples=False) for part in self._latest(requests)]
        if batch:
            self._tokens(batch)

    def draft(self, requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[list[int]]:
        batch = self._latest(self._with_room(requests, lengths))
        return draft_chains(requests, lengths, batch, self._tokens)

    def _latest(self, requests: Sequence[Request]) -> Batch:
        """Return the tokens of each request whose hidden states before them the target's latest step has computed.

        These are the tokens after those of the step, without rejected drafts.
        """
        batch: Batch = []
        self._sources = {}
        for request in requests:
            if (source := self._source(request)) is not None:
                assert request.row is not None
                count = request.computed - source.start
                batch.append(Scheduled(request, request.row, source.start + 1, count, samples=True))
                self._sources[request.row] = source.first
        return batch

    def _source(self, request: Request) -> DraftSource | None:
        """Return a request's tokens in the target's latest step, if it has any there that are still computed."""
        source = request.draft_source
        if source is None or source.step != self._step or request.computed <= source.start:
            return None
        return source

    def _tokens(self, batch: Batch) -> list[int]:
        """Compute a step of the head; return the token of each part that samples."""
        sources = [self._sources[part.row] + np.arange(part.num_tokens) for part in batch]
        self._sources = {part.row: index for index, part in enumerate(sampled_part(batch))}
        return self._executor.draft_tokens(batch, np.concatenate(sources))
