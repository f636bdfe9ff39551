"""Every setting of the formats of a model's folder, with what is done about it.

The tables of docs/models.md are made of these by tests/settings_tables.py, and tests compare the names and the defaults
with the libraries' classes. config.json has no table: transformers' own modules read it.
"""

from engine_server.models.folder_settings import Format, harmless, read, refused

SPEED = "about speed and memory"
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
