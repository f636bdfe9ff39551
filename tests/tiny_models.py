"""How large the random models are that are compared with transformers."""

from typing import Any

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}
