"""The interface of a head: from hidden states to a result for each request that samples."""

from typing import NamedTuple, Protocol

from torch import Tensor

from engine_server.core.heads.prompt_logprobs import PromptChunk
from engine_server.core.logits.token_masks import TokenMasks
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.rows import Rows
from engine_server.core.scheduling.step_result import StepResult


class HiddenStates(NamedTuple):
    """The result of a step's forward, on the device."""

    batch: Batch
    # [requests that sample, hidden], in the batch's order; of a pooling model [tokens of the step, hidden].
    rows: Tensor
    # [at most prompt_logprobs.ROWS, hidden] each, one for each of `chunks`.
    prompt_rows: list[Tensor]
    chunks: list[PromptChunk]
    # A captured step computed `rows`.
    captured: bool


class Pending(Protocol):
    """Results that are being copied from the device."""

    def collect(self) -> list[StepResult]:
        """Wait for the device, and return a result for each request that samples, in the batch's order."""


class NoResults:
    """The pending results of a step in which no request samples."""

    def collect(self) -> list[StepResult]:
        return []


class Head(Rows, Protocol):
    """The computation of results from hidden states, which keeps what it needs of running requests by row."""

    def launch(self, states: HiddenStates, masks: TokenMasks | None) -> Pending:
        """Launch the computation on the device without waiting for it.

        masks: the tokens that requests may draw; requests without one may draw any token.
        """
