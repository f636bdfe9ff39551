"""Chains of drafts, of which each continues those before it."""

from collections.abc import Callable, Sequence

from torch import Tensor

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.executor import Executor
from engine_server.core.heads.draw import DrawParameters, draw
from engine_server.core.scheduling.batch import Batch, Scheduled, output_indexes, sampled_part
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.speculation.cost_model import Floats, seconds_by_rows
from engine_server.core.speculation.drafter import Drafter


class ChainDrafter(Drafter):
    """A drafter that computes each draft from those before it, and keeps K and V in blocks of the target's table."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def _table(self) -> BlockTable:
        return self._executor.runner.table

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
    logits: Callable[[Batch], Tensor],
) -> list[list[int]]:
    """Return drafts of each request, at most its length: the first from a step of `batch`, each later one from its own.

    While they are drafted, drafts are tokens of their requests. logits: computes a step; it returns the logits
    [n, vocabulary] of the parts that sample.
    """
    known = [len(request.token_ids) for request in requests]
    ends = {
        request.row: count + length for request, count, length in zip(requests, known, lengths, strict=True)
    }
    try:
        while batch:
            sampled = sampled_part(batch)
            tokens = likely_tokens(sampled, logits(batch))
            for scheduled, token in zip(sampled, tokens, strict=True):
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


def likely_tokens(parts: Batch, logits: Tensor) -> list[int]:
    """Return the token that each part's request would take from its logits [n, vocabulary].

    It is drawn with the same random number as the target's, so that equal logits give equal tokens at any temperature.
    """
    tokens = logits.argmax(dim=-1)
    rows = [
        row
        for row, scheduled in enumerate(parts)
        if isinstance(scheduled.request, GenerationRequest) and not scheduled.request.params.greedy
    ]
    if rows:
        tokens[rows] = drawn([parts[row] for row in rows], logits[rows])
    result: list[int] = tokens.tolist()
    return result


def drawn(parts: Batch, logits: Tensor) -> Tensor:
    """Return the tokens, int64 [n], that the parts' requests would draw from logits [n, vocabulary]."""
    requests = [one.request for one in parts if isinstance(one.request, GenerationRequest)]
    parameters = DrawParameters(requests, logits.shape[1], logits.device)
    return draw(logits.float(), parameters, output_indexes(parts))
