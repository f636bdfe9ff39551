"""Log-probabilities of prompts: the logits of every token of a step, a few rows at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from engine_server.engine.core.sampler import report
from engine_server.engine.core.scheduler import Batch
from engine_server.modeling.attention import IntArray, StepInputs

ROWS = 256  # so many rows of logits at once


def report_prompts(batch: Batch, inputs: StepInputs, logits: Callable[[IntArray], Tensor]) -> None:
    """Add to each request that asked what this step shows of its prompt: of token t in the row of token t - 1.

    logits: from rows of the step [n] to their logits [n, vocabulary].
    """
    for (request, count), start in zip(batch, inputs.starts, strict=True):
        if request.prompt_logprobs is None:
            continue
        del request.prompt_logprobs[request.computed :]  # there are some where a preempted prompt comes again
        end = min(request.computed + count, request.num_prompt - 1)
        for first in range(request.computed, end, ROWS):
            positions = np.arange(first, min(first + ROWS, end))
            logprobs = logits(start + positions - request.computed).float().log_softmax(dim=-1)
            tokens = torch.tensor(request.token_ids[first + 1 :][: len(positions)], device=logprobs.device)
            wanted = [request.params.prompt_logprobs or 0] * len(positions)
            request.prompt_logprobs += report(logprobs, tokens, wanted)


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
        module.forward = compute
