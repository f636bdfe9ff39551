"""Settings with which every causal language model of transformers is tiny, by model type."""

from typing import Any

# The length of every window and chunk, in tokens.
WINDOW = 8
# Names of different classes for the same sizes; a config gets those that it has.
SIZES: dict[str, Any] = {
    "adapter_in_dim": 32, "adapter_input_size": 32, "adapter_out_dim": 32, "attention_heads": 4, "bos_token_id": 0,
    "d_ff": 48, "d_inner": 48, "d_kv": 8, "d_model": 32,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "decoder_layers": 2, "dff": 48, "dim_ff": 48, "dim_head": 8,
    "embedding_size": 32, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "encoder_layers": 2, "eos_token_id": 1,
    "expert_ffn_hidden_size": 24, "ffn_dim": 48, "ffn_hidden_size": 48, "head_dim": 8, "hidden_size": 32,
    "hidden_size_per_layer_input": 8, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8,
    "initializer_range": 0.4, "intermediate_size": 48, "is_decoder": True, "kv_lora_rank": 16,
    "max_position_embeddings": 64, "max_seq_len": 64, "moe_intermediate_size": 24, "n_embd": 32, "n_group": 1,
    "n_head": 4, "n_heads": 4, "n_layer": 2, "n_layers": 2, "n_positions": 64, "n_routed_experts": 4,
    "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 4, "pad_token_id": 0, "q_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 8,
    "vocab_size": 96, "vocab_size_per_layer_input": 96,
}  # fmt: skip
# MLA expands its keys and values to all heads.
MLA = {"num_key_value_heads": 4}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
# The last two of four layers read the keys and values of the others.
SHARED = {"num_kv_shared_layers": 2, "num_hidden_layers": 4, "layer_types": ALTERNATING["layer_types"] * 2}
ASSISTANT = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
BY_TYPE = {kind: {"rope_type": "default", "rope_theta": 100.0} for kind in ALTERNATING["layer_types"]}
# By model type, in place of SIZES or beside them.
SETTINGS: dict[str, dict[str, Any]] = {
    "axk1": MLA,
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": ALTERNATING | {"rope_parameters": BY_TYPE},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 100.0, "clip_qkv": 8.0}},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "dots1": ALTERNATING | {"n_shared_experts": 1},
    "dots3_note": {"vision_config": {"pyramid_num_routed": [0, 2]}},
    "dots3_note_text": MLA,
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "gemma3n": {"text_config": SHARED},
    "gemma3n_text": SHARED,
    "gemma4_assistant": {"text_config": ASSISTANT},
    "gemma4_text": {"global_head_dim": 16, "num_kv_shared_layers": 0},
    "gemma4_unified_assistant": {"text_config": ASSISTANT},
    "gemma4_unified_text": {"global_head_dim": 16, "num_kv_shared_layers": 0},
    "glm4_moe_lite": MLA,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": MAMBA | {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "jetmoe": {"num_key_value_heads": 2, "num_experts_per_tok": 2},
    "kimi_linear": MLA,
    "laguna": ALTERNATING,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": MLA,
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "mellum": ALTERNATING,
    "minicpm3": MLA,
    "prophetnet": {"num_hidden_layers": None, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "qwen2": ALTERNATING,
    "qwen2_moe": ALTERNATING,
    "qwen3": ALTERNATING,
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "smollm3": ALTERNATING,
    "xmod": {"default_language": "en_XX"},
    "youtu": MLA,
    "zaya": {"num_experts_per_tok": 1},
}
# Models of which a step of one token with a cache computes other logits than a forward over all tokens.
UNLIKE_CACHED = {"nemotron_h"}
# Their positions follow that of padding, but `generate` of transformers counts from 0.
AFTER_PADDING = (
    "camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
# Other forms of a model type, by type and name.
FORMS: dict[tuple[str, str], dict[str, Any]] = {
    ("gemma4_text", "shared keys and values"): SHARED,
    ("gemma4_text", "experts, values from keys"): {
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 2,
    },
    ("minimax_m3_vl_text", "sparse layers"): {"layer_types": ["minimax_m3_sparse", "full_attention"]},
}  # fmt: skip
