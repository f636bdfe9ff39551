"""The interface of a head: from hidden states to a result for each request that samples."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine_server.core.forward_output import ForwardOutput
from engine_server.core.sampling.prompt_logprobs import PromptChunk
from engine_server.core.sampling.token_masks import TokenMasks
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.rows import Rows
from engine_server.core.scheduling.step_result import StepResult


class HiddenStates(NamedTuple):
    """A launched forward, with all that its head needs."""

    batch: Batch
    # Those of prompts whose log-probabilities are wanted, at most prompt_logprobs.ROWS tokens each.
    chunks: list[PromptChunk]
    # Of the first rank.
    output: ForwardOutput
    # A mark in the device's work before the forward; None: the device has no clock.
    begun: torch.Event | None = None


class Pending(Protocol):
    """Results that are being copied from the device."""

    def collect(self) -> list[StepResult]:
        """Wait for the device, and return a result for each request that samples, in the batch's order."""


class NoResults:
    """The pending results of a step in which no request samples."""

    def collect(self) -> list[StepResult]:
        return []


class Launched(NamedTuple):
    """A head's work on the device."""

    pending: Pending
    # int64 [n] on the device, the new token of each row, which the next step's inputs may be; None: a pooler's work.
    tokens: Tensor | None = None


class Head(Rows, Protocol):
    """The computation of results from hidden states, which keeps what it needs of running requests by row."""

    def launch(
        self, states: HiddenStates, each_logits: Iterator[Tensor], masks: TokenMasks | None
    ) -> Launched:
        """Launch the computation on the device without waiting for it.

        each_logits: [n, vocabulary] of the states' rows, then of each chunk of prompts. Each is computed when it is
        taken, and is the head's to modify and to free.
        masks: the tokens that requests may draw; requests without one may draw any token.
        """
