"""Every setting of the formats of a model's and an adapter's folder, with what is done about it.

The tables of docs/models.md are made of these by tests/settings_tables.py, and tests compare the names and the defaults
with the libraries' classes. config.json has no table: transformers' own modules read it.
"""

from engine_server.model_sources.folder_settings import Format, harmless, read, refused

BY_TENSORS = "the tensors show it"
PROCESS = "about how it was made"
SPEED = "about speed and memory"
METHOD = "chooses the reader"
ACTIVATIONS = "activations are never quantised by a checkpoint's settings"
NOTE = "a note"

GENERATION_CONFIG = Format(
    "generation_config.json",
    "transformers' GenerationConfig",
    read(
        "defaults of requests",
        "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "suppress_tokens",
    )
    | read("ends of answers", "eos_token_id")
    | harmless("requests sample unless their temperature is 0, as in vLLM", "do_sample")
    | harmless("the context and a request's own limit bound answers, as in vLLM", "max_length")
    | harmless("requests say it", "num_return_sequences", "output_attentions", "output_hidden_states", "output_logits",
               "output_scores", "return_dict_in_generate")
    | harmless("only about beams, which requests ask for", "early_stopping", "length_penalty")
    | harmless("probabilities are normalised in any case", "renormalize_logits")
    | harmless("logits that are NaN end a request with an error", "remove_invalid_values")
    | harmless("the tokenizer has it", "bos_token_id", "pad_token_id")
    | harmless("only about encoder-decoder models, which are refused", "decoder_start_token_id")
    | harmless(SPEED, "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
               "disable_compile", "low_memory", "max_cache_len", "prefill_chunk_size", "use_cache")
    | harmless("about drafts, which `--speculative-config` chooses", "assistant_confidence_threshold",
               "assistant_early_exit", "assistant_lookbehind", "is_assistant", "max_matching_ngram_size",
               "num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens", "speculation_type",
               "target_lookbehind", "use_mtp")
    | harmless(NOTE, "_from_model_config", "transformers_version")
    | refused("ends answers elsewhere", min_length=0, min_new_tokens=None, max_time=None, stop_strings=None,
              exponential_decay_length_penalty=None)
    | refused("another search", num_beams=1, num_beam_groups=1, diversity_penalty=0.0, constraints=None,
              force_words_ids=None, penalty_alpha=None, dola_layers=None, assistant_ensemble_weight=None)
    | refused("other probabilities", top_h=None, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0,
              encoder_repetition_penalty=1.0, no_repeat_ngram_size=0, encoder_no_repeat_ngram_size=0,
              bad_words_ids=None, begin_suppress_tokens=None, sequence_bias=None, guidance_scale=1,
              watermarking_config=None)
    | refused("prescribes tokens", forced_bos_token_id=None, forced_eos_token_id=None)
    | refused("another prompt", token_healing=False),
)  # fmt: skip

# What GPTQ and AWQ have in common.
_MAKING = harmless(
    PROCESS, "act_group_aware", "batch_size", "cache_block_outputs", "damp_percent", "dataset", "max_input_length",
    "meta", "model_seqlen", "pad_token_id", "tokenizer", "true_sequential",
) | harmless(
    BY_TENSORS, "block_name_to_quantize", "desc_act", "modules_in_block_to_quantize",
    "module_name_preceding_first_block", "sym",
)  # fmt: skip
GPTQ = Format(
    "quantization_config, gptq; quantize_config.json",
    "transformers' GPTQConfig",
    read(METHOD, "quant_method")
    | read("the form of the codes", "bits", "group_size", "format")
    | harmless(SPEED, "backend")
    | _MAKING,
    read("as format, which it precedes", "checkpoint_format")
    | refused("other bits in single modules", dynamic=None)
    | refused("another form of the codes", is_marlin_format=False)
    | harmless(BY_TENSORS, "lm_head", "pack_dtype", "static_groups")
    | harmless(PROCESS, "mse", "model_file_base_name", "model_name_or_path"),
)
AWQ = Format(
    "quantization_config, awq",
    "transformers' AwqConfig",
    read(METHOD, "quant_method")
    | read("the form of the codes", "bits", "group_size", "format")
    | read("llm-awq is another form", "backend")
    | harmless(BY_TENSORS, "modules_to_not_convert", "zero_point")
    | _MAKING,
    read("as format, which it precedes", "version")
    | read("as bits and group_size, by AutoAWQ", "w_bit", "q_group_size")
    | harmless(SPEED, "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"),
)
FP8 = Format(
    "quantization_config, fp8",
    "transformers' FineGrainedFP8Config",
    read(METHOD, "quant_method")
    | read("the form of the scales", "weight_block_size")
    | harmless(ACTIVATIONS, "activation_scheme")
    | harmless(SPEED, "dequantize")
    | harmless(BY_TENSORS, "modules_to_convert", "modules_to_not_convert", "scale_fmt")
    | refused("another form of experts", expert_dtype="fp8"),
    harmless(BY_TENSORS, "fmt", "ignored_layers"),
)
FBGEMM = Format(
    "quantization_config, fbgemm_fp8",
    "transformers' FbgemmFp8Config",
    read(METHOD, "quant_method")
    | harmless(ACTIVATIONS, "activation_scale_ub")
    | harmless(BY_TENSORS, "modules_to_not_convert"),
)
MXFP4 = Format(
    "quantization_config, mxfp4",
    "transformers' Mxfp4Config",
    read(METHOD, "quant_method")
    | harmless(BY_TENSORS, "modules_to_not_convert")
    | harmless(SPEED, "dequantize"),
)
_CACHE = "`--kv-cache-dtype` chooses the KV cache's"
MODELOPT = Format(
    "quantization_config, modelopt; hf_quant_config.json",
    "ModelOpt",
    read(METHOD, "quant_method")
    | read("the form of the codes", "quant_algo", "group_size")
    | harmless(BY_TENSORS, "config_groups", "exclude_modules", "ignore", "quantized_layers")
    | harmless(_CACHE, "kv_cache_quant_algo", "kv_cache_scheme")
    | harmless(NOTE, "producer")
    | refused("another form of experts", moe_quant_algo=None)
    | refused("codes with zero points", has_zero_point=False)
    | refused("inputs of layers that are scaled", pre_quant_scale=False),
)
COMPRESSED_TENSORS = Format(
    "quantization_config, compressed-tensors",
    "compressed-tensors' QuantizationConfig",
    read(METHOD, "quant_method")
    | read("the form of the codes", "config_groups", "format")
    | harmless(_CACHE, "kv_cache_scheme")
    | harmless(BY_TENSORS, "ignore", "quantization_status")
    | harmless(NOTE, "global_compression_ratio")
    | refused("other experts", moe_sparsity_config=None),
    read("dense alone", "sparsity_config")
    | read("only transforms that are part of the weights", "transform_config")
    | harmless(SPEED, "dequantize", "run_compressed", "use_optimized_inference")
    | harmless(NOTE, "version"),
)
SCHEME = Format(
    "a group of config_groups",
    "compressed-tensors' QuantizationScheme",
    read("the form of the codes", "format", "weights")
    | harmless(ACTIVATIONS, "input_activations", "output_activations")
    | harmless(BY_TENSORS, "targets"),
    closed=True,
)
_CODES = "num_bits", "type", "symmetric", "group_size", "block_structure"
WEIGHTS = Format(
    "weights of a group",
    "compressed-tensors' QuantizationArgs",
    read("the form of the codes", *_CODES)
    | harmless(BY_TENSORS, "actorder", "scale_dtype", "strategy", "zp_dtype")
    | harmless(PROCESS, "observer", "observer_kwargs")
    | refused("weights that are quantised in each product", dynamic=False),
    closed=True,
)
UNUSED_ARGUMENTS = Format(
    "activations of a group, kv_cache_scheme",
    "compressed-tensors' QuantizationArgs",
    harmless(
        ACTIVATIONS,
        *_CODES,
        "actorder",
        "dynamic",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "strategy",
        "zp_dtype",
    ),
    closed=True,
)

# What all of PEFT's adapters have in common.
_PEFT = read(METHOD, "peft_type") | harmless(
    NOTE, "auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"
)
LORA = Format(
    "adapter_config.json, LORA",
    "PEFT's LoraConfig",
    _PEFT
    | read("scale of the updates", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    | read("experts and routers alone", "target_parameters")
    | read("refused if it changed the base model's weights", "init_lora_weights")
    | harmless(BY_TENSORS, "ensure_weight_tying", "exclude_modules", "layers_pattern", "layers_to_transform",
               "target_modules")
    | harmless("the layer's class shows it", "fan_in_fan_out")
    | harmless(PROCESS, "corda_config", "eva_config", "loftq_config", "lora_dropout", "lora_ga_config",
               "qalora_group_size")
    | harmless(SPEED, "megatron_config", "megatron_core", "runtime_config")
    | refused("more than sums of low-rank products", bias="none", use_dora=False, lora_bias=False, modules_to_save=None,
              trainable_token_indices=None, alora_invocation_tokens=None, layer_replication=None, use_qalora=False,
              use_bdlora=None, arrow_config=None, kasa_config=None, monteclora_config=None, velora_config=None),
)  # fmt: skip
_VIRTUAL_TOKENS = (
    _PEFT
    | read("checked with the embeddings", "num_virtual_tokens")
    | harmless(BY_TENSORS, "num_attention_heads", "num_layers", "num_transformer_submodules", "token_dim")
    | refused("other weights than embeddings", modules_to_save=None)
)
PROMPT_TUNING = Format(
    "adapter_config.json, PROMPT_TUNING",
    "PEFT's PromptTuningConfig",
    _VIRTUAL_TOKENS
    | harmless(PROCESS, "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_kwargs", "tokenizer_name_or_path"),
)  # fmt: skip
P_TUNING = Format(
    "adapter_config.json, P_TUNING",
    "PEFT's PromptEncoderConfig",
    _VIRTUAL_TOKENS
    | harmless(PROCESS, "encoder_dropout", "encoder_hidden_size", "encoder_num_layers",
               "encoder_reparameterization_type"),
)  # fmt: skip

ENTRY = Format(
    "modules.json",
    "sentence-transformers",
    read("chooses the layers after the encoder", "type", "path")
    | harmless(NOTE, "idx", "name")
    | harmless("requests have no arguments of modules", "kwargs"),
)
SENTENCE_TRANSFORMERS = Format(
    "config_sentence_transformers.json",
    "sentence-transformers",
    read("SentenceTransformer and CrossEncoder", "model_type")
    | read("put before texts", "prompts", "default_prompt_name")
    | read("the default length", "truncate_dim")
    | read("of scores", "activation_fn")
    | harmless("scores of embeddings are cosines, as in vLLM", "similarity_fn_name")
    | harmless(SPEED, "keep_in_fp32_modules")
    | harmless(NOTE, "__version__"),
)
_STATED = "the modules after it and the model's class show it"
ENCODER = Format(
    "sentence_bert_config.json",
    "sentence-transformers' Transformer",
    read("add_generation_prompt, continue_final_message", "processing_kwargs")
    | harmless(_STATED, "transformer_task", "modality_config", "module_output_name")
    | harmless(SPEED, "unpad_inputs")
    | refused("of models with a vector for each token", query_length=None, document_length=None, query_expansion=None),
    read("the default context", "max_seq_length")
    | read("texts in lower case", "do_lower_case")
    | harmless(SPEED, "backend", "model_args", "model_kwargs")
    | refused("`--tokenizer` chooses it", tokenizer_name_or_path=None)
    | refused("`--hf-overrides` changes the config", config_args=None, config_kwargs=None)
    | refused("the tokenizer's files alone are read", tokenizer_args=None, processor_kwargs=None),
)  # fmt: skip
POOLING = Format(
    "Pooling",
    "sentence-transformers' Pooling",
    read("the first or last token, or the mean", "pooling_mode")
    | read("refused if it leaves out prompts", "include_prompt")
    | harmless("the model's hidden size", "embedding_dimension"),
    read("as pooling_mode, which precedes them", "pooling_mode_cls_token", "pooling_mode_max_tokens",
         "pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens",
         "pooling_mode_lasttoken")
    | harmless("the model's hidden size", "word_embedding_dimension"),
)  # fmt: skip
_INPUT = "sentence_embedding"
NORMALIZE = Format(
    "Normalize",
    "sentence-transformers' Normalize",
    refused("another vector", module_input_name=_INPUT, module_output_name=_INPUT),
)
DENSE = Format(
    "Dense",
    "sentence-transformers' Dense",
    read("the layer", "in_features", "out_features", "bias", "activation_function", "use_residual")
    | refused("another vector", module_input_name=_INPUT, module_output_name=_INPUT),
)
LOGIT_SCORE = Format(
    "LogitScore",
    "sentence-transformers' LogitScore",
    read("the answers' tokens", "true_token_id", "false_token_id")
    | refused("another output", module_input_name="causal_logits"),
)
