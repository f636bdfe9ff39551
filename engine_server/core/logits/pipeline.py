"""The ordered list of logits processors, applied to the rows whose requests need them."""

from collections.abc import Sequence

from torch import Tensor

from engine_server.core.logits.processor import LogitsProcessor, Row
from engine_server.core.logits.request_cache import RequestCache
from engine_server.core.logits.token_masks import BlockedTokens, TokenMasks
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.platform.interface import Platform


class LogitsPipeline:
    """The application of token masks, then of each processor to the rows of the requests that need it."""

    def __init__(self, processors: Sequence[LogitsProcessor], platform: Platform) -> None:
        self._processors = processors
        self._blocked = BlockedTokens(platform)
        self._needed = RequestCache(self._select)

    def rows(self, sampling: Batch) -> list[list[Row]]:
        """Return for each processor the rows that it has to change; [] if there are none at all.

        sampling: the requests that sample, in the order of the rows of logits.
        """
        rows: list[list[Row]] = []
        for index, scheduled in enumerate(sampling):
            for position in self._needed.get(scheduled):
                rows = rows or [[] for _ in self._processors]
                rows[position].append(Row(index, scheduled))
        return rows

    def apply(self, logits: Tensor, rows: list[list[Row]], masks: TokenMasks | None) -> dict[int, str]:
        """Change float32 logits [n, vocabulary] in place; return an error for each row that can't be sampled."""
        errors: dict[int, str] = {}
        if masks is not None:
            masks.apply(logits, self._blocked)
            errors |= masks.errors
        for processor, own in zip(self._processors, rows, strict=False):
            if own:
                errors |= processor.apply(logits, own)
        return errors

    def observe(self, tokens: Tensor, rows: list[list[Row]]) -> None:
        """Pass the drawn tokens, int64 [n], to the processors that were applied."""
        for processor, own in zip(self._processors, rows, strict=False):
            if own:
                processor.observe(tokens)

    def _select(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the positions of the processors that a request needs."""
        return tuple(
            position
            for position, processor in enumerate(self._processors)
            if processor.applies_to(request.params)
        )
