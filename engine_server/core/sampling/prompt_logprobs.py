"""Log-probabilities of prompts: the logits of every token of a step, a few rows at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine_server.core.sampling.logprobs import num_ranked, rank, token_logprobs
from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.attention.interface import IntArray
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.messages import PromptLogprobsPart

# Rows of logits that are computed together.
ROWS = 256


class PromptChunk(NamedTuple):
    """Consecutive tokens of a prompt whose log-probabilities are requested."""

    request: GenerationRequest
    # Position of the token before the first of them.
    first: int
    # Indices within the step of the tokens whose logits predict them: token t is predicted at token t - 1.
    rows: IntArray

    def rank(self, logits: Tensor, platform: Platform) -> list[Tensor]:
        """Rank the chunk's tokens among all. logits: [rows, vocabulary]."""
        logprobs = logits.float().log_softmax(dim=-1)
        token_ids = self.request.token_ids[self.first + 1 :][: len(self.rows)]
        count = num_ranked(self.request.params.prompt_logprobs or 0, logits.shape[1])
        return rank(logprobs, platform.to_device(token_ids), count)

    def record(self, ranked: list[Tensor]) -> None:
        """Add the result of `rank`, copied to the host, to the request."""
        request, count = self.request, ranked[-1].shape[1]
        assert request.prompt_logprobs is not None
        known = request.num_ranked - (
            self.first - request.num_virtual
        )  # a preempted prompt is computed again
        new = token_logprobs(ranked, [count] * len(self.rows))[known:]
        request.prompt_logprobs += new
        request.num_ranked += len(new)


class PromptPart(NamedTuple):
    """A part of a step that begins within a prompt, and the index of its first token within the step."""

    first: int
    scheduled: Scheduled


def prompt_chunks(prompts: Sequence[PromptPart]) -> list[PromptChunk]:
    """Return the prompt tokens of this step whose log-probabilities are requested."""
    chunks = []
    for start, scheduled in prompts:
        request = scheduled.request
        if not isinstance(request, GenerationRequest) or not request.awaits_prompt_logprobs:
            continue
        end = min(scheduled.end, request.num_prompt - 1)
        for first in range(max(scheduled.start, request.num_virtual), end, ROWS):
            positions = np.arange(first, min(first + ROWS, end))
            chunks.append(PromptChunk(request, first, start + positions - scheduled.start))
    return chunks


def take_parts(request: GenerationRequest) -> Iterator[PromptLogprobsPart]:
    """Yield a request's new log-probabilities, and forget them."""
    tokens, request.prompt_logprobs = request.prompt_logprobs or [], []
    return PromptLogprobsPart.split(request.request_id, tokens)
