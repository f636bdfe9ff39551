"""The parameter logit_bias."""

from torch import Tensor

from engine_server.core.sampling.processor import Row
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.sampling_params import SamplingParams


class LogitBias:
    """A processor that adds to the logits of single tokens."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        # By row of the block table: token ids and what is added to their logits.
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}

    def applies_to(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def open(self, row: int, request: GenerationRequest) -> None:
        biases = request.params.logit_bias or {}
        values = [float(value) for value in biases.values()]
        self._biases[row] = self._platform.to_device(list(biases)), self._platform.to_device(values)

    def close(self, row: int) -> None:
        del self._biases[row]

    def apply(self, logits: Tensor, rows: list[Row]) -> dict[int, str]:
        for index, scheduled in rows:
            token_ids, values = self._biases[scheduled.row]
            logits[index].index_add_(0, token_ids, values)
        return {}

    def run_largest(self, logits: Tensor) -> None:
        """Do nothing: single tokens take little memory."""

    def observe(self, tokens: Tensor) -> None:
        """Do nothing: the bias doesn't depend on drawn tokens."""
