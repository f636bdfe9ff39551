"""What the sampler's kernels are told of requests."""

import numpy as np
import torch
from torch import Tensor

from engine_server.core.logits.penalties import on_device
from engine_server.core.scheduling.request import Request
from engine_server.modeling.kernels.sampling import PARAMETERS, WORDS, sample


class KernelSampler:
    """Static tensors with a row for each request of a batch, so that `sample` can be captured in a graph."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self.parameters = torch.zeros(max_num_seqs, WORDS.value, dtype=torch.int32, device=device)
        self._requests: list[Request] = []
        self._records = np.zeros(0, PARAMETERS)  # theirs

    def fill(self, requests: list[Request]) -> None:
        """Tell the kernels of the step's requests."""
        if requests != self._requests:
            self._requests, self._records = (
                list(requests),
                np.array([record(one) for one in requests], PARAMETERS),
            )
        self._records["index"] = [request.num_output for request in requests]
        words = self._records.view(np.int32).reshape(len(requests), WORDS.value)
        self.parameters[: len(requests)].copy_(on_device(words, self.parameters.device))

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each row of `logits`, and a number that is as finite as its largest logit."""
        return sample(logits, self.parameters)


def record(request: Request) -> tuple[float, ...]:
    """Its row of PARAMETERS, but for the index."""
    params = request.params
    filters = (params.temperature, params.min_p, params.top_p, max(params.top_k, 0))
    return (
        *((0, 1, 1, 0) if params.greedy else filters),
        (params.seed or 0) % (1 << 64),
        request.choice_index,
        0,
    )
