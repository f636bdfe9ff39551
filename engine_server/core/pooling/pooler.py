"""The head that pools: from hidden states to a vector, scores, or the states themselves for each request."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.config import Activation, PoolingConfig
from engine_server.core.sampling.head import HiddenStates, Launched
from engine_server.core.sampling.sampler import to_host
from engine_server.core.sampling.token_masks import TokenMasks
from engine_server.core.scheduling.request import PoolingRequest, Request
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.messages import RawTensor
from engine_server.requests.pooling_params import PoolingParams


class PoolingModel(Protocol):
    """The model's part of pooling."""

    def project(self, pooled: Tensor) -> Tensor:
        """Return the embedding, float32 [dimensions], of a pooled state, float32 [hidden]."""

    def scores(self, pooled: Tensor) -> Tensor:
        """Return the scores, float32 [labels], of a pooled state [hidden]."""


class Reduction(NamedTuple):
    """The two parts of pooling a prompt that is computed in chunks."""

    # Reduces a chunk's states [tokens, hidden] to the part that pooling needs.
    part: Callable[[Tensor], Tensor]
    # Combines the reduced chunks, given the prompt's length, into the pooled states.
    whole: Callable[[list[Tensor], int], Tensor]


REDUCTIONS = {
    "CLS": Reduction(lambda states: states[0].clone(), lambda parts, _: parts[0]),
    "LAST": Reduction(lambda states: states[-1].clone(), lambda parts, _: parts[-1]),
    "MEAN": Reduction(
        lambda states: states.float().sum(0), lambda parts, count: torch.stack(parts).sum(0) / count
    ),
    "ALL": Reduction(lambda states: states, lambda parts, _: torch.cat(parts)),
}
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda scores: scores,
    "sigmoid": torch.sigmoid,
    "softmax": lambda scores: scores.softmax(-1),
}


class PendingVectors:
    """A step's results that are being copied from the device."""

    def __init__(self, results: list[Tensor], platform: Platform) -> None:
        """Start the copies to the host."""
        self._platform = platform
        self._results = [to_host(result) for result in results]

    def collect(self) -> list[StepResult]:
        """Wait for the device; return a vector for each request whose prompt the step completed, or an error."""
        self._platform.synchronize()
        return [
            StepResult(vector=RawTensor.of(result))
            if result.isfinite().all()
            else StepResult(error="the result is not finite")
            for result in self._results
        ]


class Pooler:
    """A head that reduces each chunk of a prompt, and computes the result once all chunks are computed."""

    def __init__(self, model: PoolingModel, config: PoolingConfig, platform: Platform) -> None:
        self._model = model
        self._config = config
        self._platform = platform
        # By row of the block table: the reduction of each computed chunk of the prompt.
        self._chunks: dict[int, list[Tensor]] = {}

    def open(self, row: int, request: Request) -> None:
        self._chunks[row] = []

    def close(self, row: int) -> None:
        del self._chunks[row]

    @torch.inference_mode()
    def launch(
        self, states: HiddenStates, each_logits: Iterator[Tensor], masks: TokenMasks | None
    ) -> Launched:
        """Pool each request's part of the step's states. There are no logits and no masks."""
        results = []
        chunks = torch.split(states.output.rows, [scheduled.num_tokens for scheduled in states.batch])
        for scheduled, chunk in zip(states.batch, chunks, strict=True):
            request = scheduled.request
            assert isinstance(request, PoolingRequest)
            reduction = REDUCTIONS["ALL" if request.params.task == "encode" else self._config.pooling]
            computed = self._chunks[scheduled.row]
            computed.append(reduction.part(chunk))
            if scheduled.samples:
                pooled = reduction.whole(computed, request.num_prompt)
                results.append(self._result(request.params, pooled))
        return Launched(PendingVectors(results, self._platform))

    def _result(self, params: PoolingParams, pooled: Tensor) -> Tensor:
        """Return float32 [dimensions], [labels], or for the task encode [tokens, hidden]."""
        match params.task:
            case "encode":
                return pooled.float()
            case "embed":
                vector = self._model.project(pooled.float())[: params.dimensions]
                return F.normalize(vector, dim=0) if params.normalize else vector
        scores = self._model.scores(pooled)
        if not params.use_activation:
            return scores
        config = self._config
        return ACTIVATIONS[config.score_activation if params.task == "score" else config.activation](scores)
