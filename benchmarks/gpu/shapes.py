"""The measured models: the sizes of their config.json, random weights, and no tokenizer.

`decode_bytes` and `prefill_operations` are lower bounds of what a step must read and compute, at 2 bytes a number.
"""

import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]
NUMBER = 2  # bytes

QWEN3 = {
    "dtype": "bfloat16",
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "vocab_size": 151936,
}
SHAPES: dict[str, Config] = {
    "Qwen3-0.6B": {
        **QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "Qwen3-30B-A3B": {
        **QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}


def write(config: Config, folder: Path) -> str:
    """Write a model without weights into the folder and return its path."""
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def layer_weights(config: Config, tokens: int) -> float:
    """Return the number of a layer's weights that `tokens` use; of experts the mean under uniform routing."""
    heads = config["num_attention_heads"] + config["num_key_value_heads"]
    width = config["intermediate_size"]
    if experts := config.get("num_experts"):
        missed = (1 - config["num_experts_per_tok"] / experts) ** tokens
        width = config["moe_intermediate_size"] * experts * (1 - missed)
    return config["hidden_size"] * float(2 * heads * config["head_dim"] + 3 * width)


def decode_bytes(config: Config, sequences: int, context: int) -> float:
    """Return the bytes that a step of one token per sequence reads."""
    head = config["hidden_size"] * config["vocab_size"]
    cached = 2 * config["num_key_value_heads"] * config["head_dim"] * context * sequences
    return NUMBER * (head + config["num_hidden_layers"] * (layer_weights(config, sequences) + cached))


def prefill_operations(config: Config, tokens: int) -> float:
    """Return the operations for a prompt and its next token; causal attention has half of all pairs."""
    attention = 2 * config["num_attention_heads"] * config["head_dim"] * tokens * (tokens + 1)
    layer = 2 * tokens * layer_weights(config, 1) + attention
    return 2.0 * config["hidden_size"] * config["vocab_size"] + config["num_hidden_layers"] * layer
