"""Chains of drafts, of which each continues those before it."""

from collections.abc import Callable, Sequence

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.executor import Executor
from engine_server.core.scheduling.batch import Batch, Scheduled, sampled_part
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.cost_model import Floats, seconds_by_rows
from engine_server.core.speculation.drafter import Drafter


class ChainDrafter(Drafter):
    """A drafter that computes each draft from those before it, and keeps K and V in blocks of the target's table."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def _table(self) -> BlockTable:
        return self._executor.first.table

    def seconds(self, most_requests: int) -> Floats:
        return seconds_by_rows(self._executor.decode_seconds(draft=True), most_requests)

    def _has_room(self, requests: Sequence[GenerationRequest]) -> bool:
        """Return False if blocks are so few that drafts might preempt a request."""
        return self._table.num_free >= len(requests)

    def _with_room(
        self, requests: Sequence[GenerationRequest], lengths: Sequence[int]
    ) -> list[GenerationRequest]:
        """Make room for each request's drafts; return the requests that get drafts and have room."""
        return [
            request
            for request, length in zip(requests, lengths, strict=True)
            if length and self._grow(request, length)
        ]

    def _grow(self, request: GenerationRequest, length: int) -> bool:
        """Make room for a request's drafts, and return False if there is none."""
        assert request.row is not None
        end = len(request.token_ids) + length
        return self._table.grow(request.row, request.computed, end, end)


def draft_chains(
    requests: Sequence[GenerationRequest],
    lengths: Sequence[int],
    batch: Batch,
    likely_tokens: Callable[[Batch], list[int]],
) -> list[list[int]]:
    """Return drafts of each request, at most its length: the first from a step of `batch`, each later one from its own.

    While they are drafted, drafts are tokens of their requests. likely_tokens: computes a step; it returns the token of
    each part that samples.
    """
    known = [len(request.token_ids) for request in requests]
    ends = {
        request.row: count + length for request, count, length in zip(requests, known, lengths, strict=True)
    }
    try:
        while batch:
            sampled = sampled_part(batch)
            for scheduled, token in zip(sampled, likely_tokens(batch), strict=True):
                scheduled.request.token_ids.append(token)
            batch = [
                Scheduled(one.request, one.row, one.end, 1, samples=True)
                for one in sampled
                if len(one.request.token_ids) < ends[one.row]
            ]
        return [request.token_ids[count:] for request, count in zip(requests, known, strict=True)]
    finally:
        for request, count in zip(requests, known, strict=True):
            del request.token_ids[count:]
