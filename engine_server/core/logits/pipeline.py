"""The ordered list of logits processors, applied to the rows whose requests need them."""

from collections.abc import Sequence

from torch import Tensor

from engine_server.core.logits.batch_cache import BatchCache
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
        self._platform = platform
        self._blocked = BlockedTokens(platform)
        self._selected = RequestCache(self._select)
        self._needed = BatchCache(self._select_rows)

    def rows(self, sampling: Batch) -> list[list[Row]]:
        """Return for each processor the rows that it has to change; [] if there are none at all.

        sampling: the requests that sample, in the order of the rows of logits.
        """
        rows: list[list[Row]] = []
        for index, position in self._needed.get(sampling):
            rows = rows or [[] for _ in self._processors]
            rows[position].append(Row(index, sampling[index]))
        return rows

    def mask(self, logits: Tensor, masks: TokenMasks) -> dict[int, str]:
        """Mask logits [n, vocabulary] in place; return an error for each row that can't be sampled."""
        masks.apply(logits, self._blocked)
        return masks.errors

    def apply(self, logits: Tensor, rows: list[list[Row]]) -> dict[int, str]:
        """Change float32 logits [n, vocabulary] in place; return an error for each row that can't be sampled."""
        errors: dict[int, str] = {}
        for processor, own in zip(self._processors, rows, strict=False):
            if own:
                errors |= processor.apply(logits, own)
        return errors

    def redirect(self, logits: Tensor, masks: TokenMasks) -> None:
        """Move the probability of ends in logits [n, vocabulary] in place, after all processors."""
        masks.redirects.apply(logits, self._platform)

    def run_largest(self, logits: Tensor) -> None:
        """Change float32 logits [n, vocabulary] by each processor as for the requests that take the most memory."""
        for processor in self._processors:
            processor.run_largest(logits)

    def observe(self, tokens: Tensor, rows: list[list[Row]]) -> None:
        """Pass the drawn tokens, int64 [n], to the processors that were applied."""
        for processor, own in zip(self._processors, rows, strict=False):
            if own:
                processor.observe(tokens)

    def _select_rows(self, sampling: Batch) -> list[tuple[int, int]]:
        """Return each row that has to be changed, with the position of a processor that it needs."""
        return [
            (index, position)
            for index, scheduled in enumerate(sampling)
            for position in self._selected.get(scheduled)
        ]

    def _select(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the positions of the processors that a request needs."""
        return tuple(
            position
            for position, processor in enumerate(self._processors)
            if processor.applies_to(request.params)
        )
