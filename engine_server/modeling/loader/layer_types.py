"""The types that a config gives to its layers: which attend, and which carry a state from token to token."""

from transformers import PreTrainedConfig

# Softmax attention over all earlier tokens, a window or a chunk of them.
ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
RECURRENT = frozenset({"linear_attention", "conv"})
# Both in one layer.
HYBRID = frozenset({"hybrid"})
# Neither: each token alone.
FEED_FORWARD = frozenset({"moe", "mlp"})
KNOWN = ATTENTION | RECURRENT | HYBRID | FEED_FORWARD


def layer_types(config: PreTrainedConfig) -> list[str]:
    """Return the type of each layer; empty if the config names none, and all attend. config: of the text model."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return [*(types or ())][: config.num_hidden_layers]


def attending_layers(config: PreTrainedConfig) -> list[int]:
    """Return the layers that attend."""
    types = layer_types(config)
    if not RECURRENT & set(types) and not HYBRID & set(types):
        return [*range(config.num_hidden_layers)]
    return [layer for layer, kind in enumerate(types) if kind in ATTENTION | HYBRID]


def num_recurrent_layers(config: PreTrainedConfig) -> int:
    """Return the number of layers that carry a state from token to token."""
    return sum(kind in RECURRENT | HYBRID for kind in layer_types(config))
