"""The first forward: does every layer call our hook, and what does each keep?"""

from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

from engine_server.engine.core.attention import (
    AttentionBackend,
    LayerShape,
    StepInputs,
    UnsupportedModelError,
    forward_context,
)

# Their factors follow the longest position in the batch, so a neighbour would change a request's result.
NEIGHBOURLY_ROPES = ("longrope", "dynamic")


class Probe(AttentionBackend):
    """Attends within the step alone, and notes what each layer would cache."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.calls: Counter[int] = Counter()

    def begin(self, inputs: StepInputs) -> None:
        pass

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        self.calls[layer] += 1
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        output = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return output[0].transpose(0, 1)


def probe(
    model: nn.Module, config: PreTrainedConfig, num_tokens: int, device: torch.device
) -> list[LayerShape]:
    """Run `num_tokens` tokens through the model; the layers' shapes in order.

    Raises UnsupportedModelError for a model that would be computed wrongly.
    """
    refuse_rope(config)
    tokens = np.zeros(num_tokens, dtype=np.int64)
    one = np.zeros(1, dtype=np.int64)
    inputs = StepInputs(tokens, tokens, tokens, one, one, one, one.astype(np.int32).reshape(1, 1))
    seen = Probe()
    with torch.inference_mode(), forward_context(seen, inputs):
        model(
            input_ids=torch.zeros(1, num_tokens, dtype=torch.long, device=device),
            position_ids=torch.arange(num_tokens, device=device).unsqueeze(0),
            use_cache=False,
            logits_to_keep=1,
        )
    layers = config.num_hidden_layers
    if seen.calls != Counter(range(layers)):
        raise UnsupportedModelError(
            f"{type(model).__name__} has {layers} layers, of which {len(seen.calls)} call the attention interface "
            f"of transformers, {seen.calls.total()} times; it would be computed wrongly"
        )
    return [seen.shapes[layer] for layer in range(layers)]


def refuse_rope(config: PreTrainedConfig) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = {
        value.get("rope_type") for value in (parameters, *parameters.values()) if isinstance(value, dict)
    }
    for kind in kinds.intersection(NEIGHBOURLY_ROPES):
        raise UnsupportedModelError(f"the model's rope is of type {kind}, which isn't supported yet")
