"""The ordered list of logits processors, applied to the rows whose requests need them."""

from collections.abc import Sequence

from torch import Tensor

from engine_server.core.sampling.processor import LogitsProcessor, Row
from engine_server.core.sampling.token_masks import BlockedTokens, TokenMasks
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.platform.interface import Platform


class LogitsPipeline:
    """The application of token masks, then of each processor to the rows of the requests that need it."""

    def __init__(self, processors: Sequence[LogitsProcessor], platform: Platform) -> None:
        self._processors = processors
        self._platform = platform
        self._blocked = BlockedTokens(platform)
        # By row of the block table: the positions of the processors that its request needs.
        self._needed: dict[int, list[int]] = {}

    def open(self, row: int, request: GenerationRequest) -> None:
        """Take what processors need of a request that gets a row of the block table."""
        needed = [
            position
            for position, processor in enumerate(self._processors)
            if processor.applies_to(request.params)
        ]
        for position in needed:
            self._processors[position].open(row, request)
        if needed:
            self._needed[row] = needed

    def close(self, row: int) -> None:
        """Forget the request of a row."""
        for position in self._needed.pop(row, ()):
            self._processors[position].close(row)

    def rows(self, sampling: Batch) -> list[list[Row]]:
        """Return for each processor the rows that it has to change; [] if there are none at all.

        sampling: the requests that sample, in the order of the rows of logits.
        """
        if not self._needed:
            return []
        rows: list[list[Row]] = [[] for _ in self._processors]
        for index, part in enumerate(sampling):
            for position in self._needed.get(part.row, ()):
                rows[position].append(Row(index, part))
        return rows if any(rows) else []

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
