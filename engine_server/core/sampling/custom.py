"""Logits processors that the engine was started with, and that requests name."""

from collections.abc import Callable, Mapping

from torch import Tensor

from engine_server.core.sampling.processor import Row
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.requests.sampling_params import SamplingParams

# Takes a request's tokens, prompt and output, and its row of logits [vocabulary]; returns the row to sample from.
CustomProcessor = Callable[[list[int], Tensor], Tensor]


class CustomProcessors:
    """A processor that calls the processors named by each request, in their order."""

    def __init__(self, processors: Mapping[str, CustomProcessor]) -> None:
        """`processors` by their import paths."""
        self._processors = processors
        # By row of the block table: the paths that the request names.
        self._named: dict[int, list[str]] = {}

    def applies_to(self, params: SamplingParams) -> bool:
        return bool(params.logits_processors)

    def open(self, row: int, request: GenerationRequest) -> None:
        self._named[row] = list(request.params.logits_processors or ())

    def close(self, row: int) -> None:
        del self._named[row]

    def apply(self, logits: Tensor, rows: list[Row]) -> dict[int, str]:
        errors = {}
        for index, scheduled in rows:
            request = scheduled.request
            row, token_ids = logits[index], request.token_ids[request.num_virtual : scheduled.end]
            for path in self._named[scheduled.row]:
                try:
                    row.copy_(self._processors[path](token_ids.copy(), row))
                except Exception as error:
                    errors[index] = f"{path}: {type(error).__name__}: {error}"
                    break
        return errors

    def run_largest(self, logits: Tensor) -> None:
        """Do nothing: what the processors take is not known."""

    def observe(self, tokens: Tensor) -> None:
        """Do nothing: the processors get drawn tokens from the host."""
