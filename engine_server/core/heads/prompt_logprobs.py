"""Log-probabilities of prompts: the logits of every token of a step, a few rows at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from engine_server.core.heads.sampler import rank, report
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Batch
from engine_server.modeling.attention.interface import IntArray

ROWS = 256  # so many rows of logits at once


class PromptChunk(NamedTuple):
    """Some tokens of a prompt whose log-probabilities are asked for."""

    request: Request
    first: int  # the position before that of the first of them
    rows: IntArray  # of the step, whose logits show them: of token t in the row of token t - 1

    def report(self, logits: Tensor) -> None:
        """Add what the chunk's `logits` [rows, vocabulary] show of the prompt."""
        logprobs = logits.float().log_softmax(dim=-1)
        token_ids = self.request.token_ids[self.first + 1 :][: len(self.rows)]
        wanted = self.request.params.prompt_logprobs or 0
        ranked = rank(logprobs, torch.tensor(token_ids, device=logprobs.device), wanted)
        assert self.request.prompt_logprobs is not None
        self.request.prompt_logprobs += report(ranked, [wanted] * len(self.rows))


def prompt_chunks(batch: Batch, starts: IntArray) -> list[PromptChunk]:
    """What this step shows of the prompts that asked. starts: [S], where each sequence's tokens begin."""
    chunks = []
    for (request, count), start in zip(batch, starts, strict=True):
        if request.prompt_logprobs is None:
            continue
        del request.prompt_logprobs[request.computed :]  # there are some where a preempted prompt comes again
        end = min(request.computed + count, request.num_prompt - 1)
        for first in range(request.computed, end, ROWS):
            positions = np.arange(first, min(first + ROWS, end))
            chunks.append(PromptChunk(request, first, start + positions - request.computed))
    return chunks


@contextmanager
def kept_output(module: nn.Module) -> Iterator[None]:
    """Let `module` compute once: until the end, further calls give what the first one gave."""
    compute = module.forward
    kept: list[object] = []

    def forward(*args: object, **kwargs: object) -> object:
        if not kept:
            kept.append(compute(*args, **kwargs))
        return kept[0]

    module.forward = forward
    try:
        yield
    finally:
        del module.forward
