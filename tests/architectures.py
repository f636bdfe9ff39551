"""The architectures of docs/models.md, as settings of tiny random models."""

from typing import Any, NamedTuple

from tiny_models import TINY

WINDOW = 8
ORIGINAL = 16  # trained positions of a stretched rope
SIZES = TINY | {
    "vocab_size": 96,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ALTERNATING = ["sliding_attention", "full_attention"]


class Architecture(NamedTuple):
    name: str
    # Name of transformers' class.
    model: str
    special: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - never written to
    # Operations that have no native equivalent in its decode program, if its rows fill vectors.
    torch_operations: tuple[str, ...] = ()
    # Its decode steps are recorded as a program.
    recorded: bool = True


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 8,
}  # fmt: skip


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, **more}}


# The sizes of rows, and lists with a number for each pair of a head's dimensions.
ROWS = {
    "hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim",
    "intermediate_size_mlp", "word_embed_proj_dim", "head_dim", "rotary_dim", "kv_lora_rank", "q_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "short_factor", "long_factor", "global_head_dim",
    "hidden_size_per_layer_input",
}  # fmt: skip
ROUTER = "linear", "topk", "RoutedExperts"
# The last two of four layers read the keys and values of the others.
SHARED = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ALTERNATING * 2, "head_dim": 8,
    "sliding_window": WINDOW,
}  # fmt: skip


def widened(settings: dict[str, Any], factor: int = 8) -> dict[str, Any]:
    """Return the settings of a model with wider rows, which fill vectors."""
    return {
        name: widened(value, factor)
        if isinstance(value, dict)
        else value * factor
        if name in ROWS and value is not None
        else value
        for name, value in settings.items()
    }


ARCHITECTURES = [
    Architecture("llama", "LlamaForCausalLM", "grouped queries"),
    Architecture(
        "llama 3", "LlamaForCausalLM", "rope scaled by wavelength",
        scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
    ),
    Architecture("llama, linear", "LlamaForCausalLM", "rope scaled", scaled("linear")),
    Architecture(
        "llama, dynamic", "LlamaForCausalLM", "rope scaled as the context grows",
        {**scaled("dynamic"), "max_position_embeddings": ORIGINAL}, ("SequenceRope",),
    ),
    Architecture(
        "llama, yarn", "LlamaForCausalLM", "rope scaled by YaRN",
        scaled("yarn", original_max_position_embeddings=ORIGINAL),
    ),
    Architecture("mistral", "MistralForCausalLM", "sliding window", {"sliding_window": WINDOW}),
    Architecture(
        "mixtral", "MixtralForCausalLM", "mixture of experts",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
        (*ROUTER, "softmax", "sum", "div_"),
    ),
    Architecture(
        "qwen2", "Qwen2ForCausalLM", "windows in some layers",
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    ),
    Architecture(
        "qwen2-moe", "Qwen2MoeForCausalLM", "mixture of experts",
        {**EXPERTS, "shared_expert_intermediate_size": 24}, (*ROUTER, "softmax", "sigmoid"),
    ),
    Architecture("qwen3", "Qwen3ForCausalLM", "normalised queries and keys", {"head_dim": 8}),
    Architecture(
        "qwen3-moe", "Qwen3MoeForCausalLM", "mixture of experts", {**EXPERTS, "head_dim": 8}, (*ROUTER, "softmax")
    ),
    Architecture("gemma", "GemmaForCausalLM", "scaled embeddings", {"head_dim": 8}),
    Architecture(
        "gemma 2", "Gemma2ForCausalLM", "softcap, windows in some layers",
        {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
        ("div", "tanh"),
    ),
    Architecture(
        "gemma 3", "Gemma3ForCausalLM", "windows in some layers, a rope for each kind",
        {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "layer_types": ALTERNATING},
    ),
    Architecture(
        "gemma 3n", "Gemma3nForCausalLM", "layers that read the keys and values of others, AltUp, LAuReL",
        {**SHARED, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "laurel_rank": 4,
         "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.5]},
        recorded=False,
    ),
    Architecture(
        "gemma 4, E", "Gemma4ForCausalLM", "layers that read the keys and values of others, inputs of each layer",
        {**SHARED, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96,
         "use_double_wide_mlp": True},
    ),
    Architecture(
        "gemma 4, A4B", "Gemma4ForCausalLM", "heads by kind of layer, values from keys, mixture of experts",
        {"head_dim": 8, "sliding_window": WINDOW, "layer_types": ALTERNATING, "global_head_dim": 16,
         "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
         "hidden_size_per_layer_input": 0,
         "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
        ("RoutedExperts", "topk", "softmax", "sum", "div_", "index"),
    ),
    Architecture("phi", "PhiForCausalLM", "rope over a part of each head, parallel", {"partial_rotary_factor": 0.5}),
    Architecture(
        "phi 3", "Phi3ForCausalLM", "longrope",
        {
            "original_max_position_embeddings": ORIGINAL,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": ORIGINAL,
                "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
                "partial_rotary_factor": 1.0,
            },
        },
        ("SequenceRope",),
    ),
    Architecture(
        "llama 4", "Llama4ForCausalLM",
        "chunks with rope in some layers, no positions in the others, mixture of experts",
        {"attention_chunk_size": WINDOW, "head_dim": 8, "no_rope_layers": [1, 0],
         "floor_scale": 12, "attn_scale": 0.5, "intermediate_size_mlp": 48, "num_local_experts": 4,
         "interleave_moe_layer_step": 2},
        (*ROUTER, "sigmoid", "to", "ones_like", "div", "floor", "log1p"),
    ),
    Architecture("gpt2", "GPT2LMHeadModel", "learned positions"),
    Architecture("gpt-neox", "GPTNeoXForCausalLM", "rope over a part of each head, parallel"),
    Architecture(
        "opt", "OPTForCausalLM", "learned positions",
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4},
    ),
    Architecture("bloom", "BloomForCausalLM", "ALiBi; own attention module"),
    Architecture(
        "falcon, ALiBi", "FalconForCausalLM", "ALiBi; own attention module",
        {
            "alibi": True, "new_decoder_architecture": False, "multi_query": False, "parallel_attn": False,
            "bias": True,
        },
    ),
    Architecture(
        "falcon, multi-query", "FalconForCausalLM", "one KV head, parallel; own attention module",
        {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
    ),
    Architecture(
        "falcon, new", "FalconForCausalLM", "grouped queries, parallel; own attention module",
        {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    Architecture("gptj", "GPTJForCausalLM", "rope over a part of each head; own attention module", {"rotary_dim": 4}),
    Architecture("starcoder2", "Starcoder2ForCausalLM", "sliding window", {"sliding_window": WINDOW}),
    Architecture("olmo2", "Olmo2ForCausalLM", "normalised queries and keys"),
    Architecture("stablelm", "StableLmForCausalLM", "rope over a part of each head", {"partial_rotary_factor": 0.5}),
    Architecture("granite", "GraniteForCausalLM", "scaled embeddings, residuals and logits", {}, ("div",)),
    Architecture("cohere", "CohereForCausalLM", "parallel"),
    Architecture(
        "cohere 2", "Cohere2ForCausalLM", "windows with rope in some layers, no positions in the others",
        {"sliding_window": WINDOW, "layer_types": ALTERNATING},
    ),
    Architecture(
        "deepseek-v2", "DeepseekV2ForCausalLM", "MLA, mixture of experts", {**MLA, "q_lora_rank": None},
        (*ROUTER, "softmax", "polar", "ones_like", "mul", "to", "type_as"),
    ),
    Architecture(
        "deepseek-v3", "DeepseekV3ForCausalLM", "MLA, mixture of experts", {**MLA, "q_lora_rank": 16},
        (*ROUTER, "sigmoid", "sum", "zeros_like", "scatter_", "to", "bitwise_not", "masked_fill", "gather", "div_"),
    ),
    Architecture(
        "gpt-oss", "GptOssForCausalLM", "sinks, windows in some layers, mixture of experts",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": WINDOW,
         "layer_types": ALTERNATING},
        (*ROUTER, "softmax"),
    ),
]  # fmt: skip
