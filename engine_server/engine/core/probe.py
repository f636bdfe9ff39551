"""The first forward: does every layer call our hook, and what does each keep?"""

from collections import Counter

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from engine_server.engine.core.attention import (
    LayerShape,
    Scoring,
    StepInputs,
    UnsupportedModelError,
    forward_context,
)
from engine_server.engine.core.torch_attention import StepAttention

# Their factors follow the longest position in the batch, so a neighbour would change a request's result.
NEIGHBOURLY_ROPES = ("longrope", "dynamic")


class Probe(StepAttention):
    """Notes what each layer would cache."""

    def __init__(self) -> None:
        self.shapes: dict[int | None, LayerShape] = {}
        self.calls: Counter[int | None] = Counter()

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        self.calls[layer] += 1
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2], scoring.window)
        return super().attend(layer, query, key, value, scoring)


def probe(
    model: nn.Module, config: PreTrainedConfig, num_tokens: int, device: torch.device
) -> list[LayerShape]:
    """Run `num_tokens` tokens through the model; the layers' shapes in order.

    Raises UnsupportedModelError for a model that would be computed wrongly.
    """
    refuse_rope(config)
    tokens = np.zeros(num_tokens, dtype=np.int64)
    zero, length = np.zeros(1, dtype=np.int64), np.full(1, num_tokens)
    inputs = StepInputs(tokens, tokens, [tokens], zero, length, length, [np.zeros((1, 1), dtype=np.int32)])
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
