"""From hidden states to a vector, scores, or states for each request: the counterpart of the sampler."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from engine_server.engine.config import Activation, PoolingConfig
from engine_server.engine.core.attention import UnsupportedModelError
from engine_server.engine.core.scheduler import Batch, Sampled
from engine_server.engine.messages import RawTensor
from engine_server.engine.pooling_params import PoolingParams


class Reduction(NamedTuple):
    """How a prompt that comes in chunks is pooled."""

    part: Callable[[Tensor], Tensor]  # what to keep of a chunk's states, [tokens, hidden]
    whole: Callable[[list[Tensor], int], Tensor]  # the result from the parts and the prompt's length


REDUCTIONS = {
    "CLS": Reduction(lambda states: states[0].clone(), lambda parts, _: parts[0]),
    "LAST": Reduction(lambda states: states[-1].clone(), lambda parts, _: parts[-1]),
    "MEAN": Reduction(
        lambda states: states.sum(0, dtype=torch.float32),
        lambda parts, count: torch.stack(parts).sum(0) / count,
    ),
    "ALL": Reduction(lambda states: states, lambda parts, _: torch.cat(parts)),
}
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(-1),
}


class Pooler:
    """Keeps of each chunk what the result needs, and makes the result once a prompt is computed."""

    def __init__(self, model: PreTrainedModel, config: PoolingConfig) -> None:
        self.config = config
        self.head = classifier_head(model) if config.num_labels is not None else None

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
                    Sampled(pooled=RawTensor.of(result)) if finite else Sampled(error="a result isn't finite")
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
        assert self.head is not None
        scores = self.head(pooled)
        return ACTIVATIONS[self.config.activation](scores) if params.use_activation else scores


class PooledState(nn.Module):
    """Stands in a classifier where its base model was, and passes on a state that was pooled already."""

    state: Tensor

    def __init__(self, pooler: nn.Module | None) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        pooled = self.pooler(self.state) if self.pooler is not None else None
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=self.state, pooler_output=pooled
        )


def classifier_head(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """What a ...ForSequenceClassification does behind its base model, which it loses: [hidden] to [labels], float32."""
    dtype, token = model.dtype, torch.zeros(1, 1, dtype=torch.long, device=model.device)
    base = PooledState(getattr(model.base_model, "pooler", None))
    setattr(model, model.base_model_prefix, base)

    def head(pooled: Tensor) -> Tensor:
        base.state = pooled.to(token.device, dtype).view(1, 1, -1)
        scores: Tensor = model(input_ids=token).logits[0].float()
        return scores

    if head(torch.zeros(model.config.get_text_config().hidden_size)).shape != (model.config.num_labels,):
        raise UnsupportedModelError(
            f"{type(model).__name__} pools in a way of its own, which isn't supported"
        )
    return head
