"""Tiny random llamas in GGUF files with each kind of a rope."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, LAYERS, CONTEXT, TRAINED = 64, 2, 2, 256, 64
DIMENSIONS = HIDDEN // HEADS
BASE = 10000.0


def llama3_factors() -> np.ndarray:
    """Return the divisors of Llama 3.1 for a model that was trained with `TRAINED` positions."""
    factors = []
    for pair in range(DIMENSIONS // 2):
        wavelength = 2 * math.pi * BASE ** (2 * pair / DIMENSIONS)
        smooth = min(1.0, max(0.0, (TRAINED / wavelength - 1) / (4 - 1)))
        factors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, np.float32)


# llama.cpp reads yarn_beta_fast and yarn_beta_slow for no architecture that transformers takes from a GGUF file.
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": TRAINED}
ROPES: dict[str, dict[str, Any]] = {
    "bare": {},
    "linear": {"scaling": {"type": "linear", "factor": 4.0}},
    "older linear": {"scale_linear": 4.0},
    "none": {"scaling": {"type": "none", "factor": 4.0}},
    "yarn": {"scaling": YARN},
    "yarn and a factor of attention": {"scaling": YARN | {"attn_factor": 1.25}},
    "factors": {"factors": llama3_factors()},
    "factors and linear": {"factors": llama3_factors(), "scaling": {"type": "linear", "factor": 2.0}},
    "factors and yarn": {"factors": llama3_factors(), "scaling": YARN},
    "factor of attention": {"scaling": {"attn_factor": 1.25}},
}


def save_rope(
    path: Path,
    scaling: dict[str, str | int | float] | None = None,
    scale_linear: float | None = None,
    factors: np.ndarray | None = None,
    name: str | None = None,
) -> Path:
    """Write the model. scaling: keys after rope.scaling; factors: of the tensor rope_freqs; name: the model's title."""
    writer = gguf.GGUFWriter(path, "llama")
    if name is not None:
        writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(DIMENSIONS)
    for key, value in (scaling or {}).items():
        full = f"llama.rope.scaling.{key}"
        match value:
            case str():
                writer.add_string(full, value)
            case int():
                writer.add_uint32(full, value)
            case float():
                writer.add_float32(full, value)
    if scale_linear is not None:
        writer.add_float32("llama.rope.scale_linear", scale_linear)
    tokens = ["<unk>", "<s>", "</s>", *(f"w{number:03}" for number in range(256))]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, *[1] * 256])
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        """Return numbers that bfloat16 has too."""
        values = random.standard_normal(shape, np.float32)
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)

    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.add_tensor(f"blk.{layer}.{part}.weight", weights(HIDDEN, HIDDEN) / 8)
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{part}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("token_embd.weight", weights(len(tokens), HIDDEN))
    writer.add_tensor("output.weight", weights(len(tokens), HIDDEN) / 8)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
