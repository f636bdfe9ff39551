"""Sampling by Triton kernels, from parameters at fixed device addresses."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.core.logits.batch_cache import BatchCache
from engine_server.core.scheduling.batch import Batch, output_indexes
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.modeling.graphs.step_graphs import StepGraphs, ladder
from engine_server.modeling.kernels.sampling import PARAMETERS, WORDS, sample
from engine_server.modeling.platform.interface import Platform


class KernelSampler:
    """Static tensors with a row for each request that samples, so that `sample` can be captured in a CUDA graph."""

    def __init__(self, max_num_rows: int, platform: Platform) -> None:
        self._platform, device = platform, platform.device
        self.parameters = torch.zeros(max_num_rows, WORDS.value, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._largest = torch.zeros(max_num_rows, dtype=torch.float32, device=device)
        self._records = BatchCache(records)
        self._graphs: StepGraphs | None = None

    def fill(self, sampling: Batch) -> None:
        """Copy the parameters of a step's requests to the device."""
        rows = self._records.get(sampling)
        rows["index"] = output_indexes(sampling)
        words = rows.view(np.int32).reshape(len(sampling), WORDS.value)
        self.parameters[: len(sampling)].copy_(self._platform.to_device(words))

    def sample(self, logits: Tensor, captured: bool) -> tuple[Tensor, Tensor]:
        """Return a token for each row of `logits`, and a number that is finite only if its largest logit is, [n] each.

        captured: the rows are the first of the buffer of captured steps.
        """
        size = self._graphs.size_for(len(logits)) if captured and self._graphs else None
        if size is None or self._graphs is None:
            return sample(logits, self.parameters)
        self._graphs.replay(size)
        return self._tokens[: len(logits)], self._largest[: len(logits)]

    def capture(self, logits: Tensor) -> None:
        """Capture sampling from `logits` [max_num_rows, vocabulary], the buffer of captured steps."""

        def run(size: int) -> None:
            tokens, largest = sample(logits[:size], self.parameters)
            self._tokens[:size].copy_(tokens)
            self._largest[:size].copy_(largest)

        self._graphs = StepGraphs("samples", run, ladder(len(logits)))

    @property
    def captured_bytes(self) -> int:
        """The memory of the graphs."""
        return self._graphs.bytes if self._graphs else 0

    def release_graphs(self) -> None:
        """Free the memory of the graphs that `capture` recorded."""
        self._graphs = None


def records(sampling: Batch) -> npt.NDArray[np.void]:
    """Return the PARAMETERS of each part's request, [n]."""
    return np.array([record(scheduled.request) for scheduled in sampling], PARAMETERS)


def record(request: Request) -> tuple[float, ...]:
    """Return the request's PARAMETERS, with the index of a first token."""
    assert isinstance(request, GenerationRequest)
    params = request.params
    seed = (params.seed or 0) % (1 << 64)
    if params.greedy:
        return (0, 1, 1, 0, seed, request.choice_index, 0)
    filters = (params.temperature, params.min_p, params.top_p, max(params.top_k, 0))
    return (*filters, seed, request.choice_index, 0)
