"""From hidden states to a vector, scores, or states for each request: the counterpart of the sampler."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from engine_server.config import Activation, PoolingConfig
from engine_server.core.model_runner import ModelRunner
from engine_server.core.scheduling.scheduler import Batch, Sampled
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.requests.messages import RawTensor
from engine_server.requests.pooling_params import PoolingParams


class Reduction(NamedTuple):
    """How a prompt that comes in chunks is pooled."""

    part: Callable[[Tensor], Tensor]  # what to keep of a chunk's states, [tokens, hidden]
    whole: Callable[[list[Tensor], int], Tensor]  # the result of the parts and the prompt's length


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


class Pooler:
    """Keeps of each chunk what the result needs, and makes the result once a prompt is computed."""

    def __init__(self, runner: ModelRunner, config: PoolingConfig) -> None:
        self.runner = runner
        self.config = config
        if config.num_labels is not None:
            model = runner.model
            state = torch.zeros(model.config.get_text_config().hidden_size, device=runner.device)
            if classify(model, state).shape != (config.num_labels,):
                raise UnsupportedModelError(
                    f"{type(model).__name__} pools in a way of its own, which isn't supported"
                )

    @torch.inference_mode()
    def pool(self, states: Tensor, batch: Batch) -> list[Sampled]:
        """states: [T, hidden] of the whole batch. A result for each request whose prompt it completes."""
        results = []
        chunks = torch.split(states, [scheduled.num_tokens for scheduled in batch])
        for scheduled, chunk in zip(batch, chunks, strict=True):
            request, params = scheduled.request, scheduled.request.pooling
            assert params is not None
            reduction = REDUCTIONS["ALL" if params.task == "encode" else self.config.pooling]
            if request.computed == 0:
                request.pooled = []  # it may have been preempted halfway
            request.pooled.append(reduction.part(chunk))
            if scheduled.samples:
                result = self._result(params, reduction.whole(request.pooled, request.num_prompt))
                finite = bool(result.isfinite().all())
                results.append(
                    Sampled(pooled=RawTensor.of(result))
                    if finite
                    else Sampled(error="its result isn't finite")
                )
        return results

    def _result(self, params: PoolingParams, pooled: Tensor) -> Tensor:
        """In float32: [dimensions], [labels], or for the task encode [tokens, hidden]."""
        match params.task:
            case "encode":
                return pooled.float()
            case "embed":
                vector = pooled.float()[: params.dimensions]
                return F.normalize(vector, dim=0) if params.normalize else vector
        scores = classify(self.runner.model, pooled)
        return ACTIVATIONS[self.config.activation](scores) if params.use_activation else scores


@torch.inference_mode()
def classify(model: Any, pooled: Tensor) -> Tensor:
    """What a ...ForSequenceClassification does behind its base model: from [hidden] to [labels], float32.

    Its own forward runs, while the base model passes on the state that was pooled already.
    """
    base, state = model.base_model, pooled.to(model.dtype).view(1, 1, -1)
    pooler = getattr(base, "pooler", None)
    base.forward = lambda *_, **__: BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=state, pooler_output=pooler(state) if pooler else None
    )
    try:
        scores: Tensor = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=state.device)).logits[0]
        return scores.float()
    finally:
        del base.forward
