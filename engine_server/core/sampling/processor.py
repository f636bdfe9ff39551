"""The interface of a logits processor."""

from typing import NamedTuple, Protocol

from torch import Tensor

from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.requests.sampling_params import SamplingParams


class Row(NamedTuple):
    """A row of logits, and the request that samples from it."""

    position: int
    scheduled: Scheduled


class LogitsProcessor(Protocol):
    """A change of logits before tokens are drawn. Data about a request stay on the device between steps."""

    def applies_to(self, params: SamplingParams) -> bool:
        """Return True if requests with these parameters need it."""

    def open(self, row: int, request: GenerationRequest) -> None:
        """Take what the processor needs of such a request, which gets a row of the block table."""

    def close(self, row: int) -> None:
        """Forget the request of a row that was opened."""

    def apply(self, logits: Tensor, rows: list[Row]) -> dict[int, str]:
        """Change float32 logits [n, vocabulary] in place; return an error for each row that can't be sampled."""

    def run_largest(self, logits: Tensor) -> None:
        """Change float32 logits [n, vocabulary] as for the requests that take the most memory, to measure it."""

    def observe(self, tokens: Tensor) -> None:
        """Take the tokens, int64 [n] on the device, that were drawn after the latest `apply`."""
