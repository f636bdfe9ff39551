"""Sampling by Triton kernels, from parameters at fixed device addresses."""

import numpy as np
import torch
from torch import Tensor

from engine_server.core.sampling.row_parameters import Records
from engine_server.modeling.graphs.step_graphs import StepGraphs, ladder
from engine_server.modeling.kernels.sampling import WORDS, sample
from engine_server.modeling.platform.interface import Platform


class KernelSampler:
    """Static tensors with a row for each request that samples, so that `sample` can be captured in a CUDA graph."""

    def __init__(self, max_num_rows: int, platform: Platform) -> None:
        self._platform, device = platform, platform.device
        self.parameters = torch.zeros(max_num_rows, WORDS.value, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._largest = torch.zeros(max_num_rows, dtype=torch.float32, device=device)
        self._graphs: StepGraphs | None = None

    def fill(self, records: Records) -> None:
        """Copy the PARAMETERS of a step's rows of logits to the device."""
        words = records.view(np.int32).reshape(len(records), WORDS.value)
        self.parameters[: len(records)].copy_(self._platform.to_device(words))

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
