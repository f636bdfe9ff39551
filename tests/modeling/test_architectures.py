"""Every architecture of docs/models.md, as a tiny random model: its greedy output equals that of transformers."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from tiny_models import TINY

from engine_server import EngineArgs, LLMEngine, SamplingParams, StatLoggerBase
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.stats import IterationStats

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
NEW_TOKENS = 6
BLOCK_SIZE = 4
# A prompt that stays short, one whose output crosses windows and trained positions, and one that is long from the
# start.
LENGTHS = (3, 14, 37)

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


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 8,
}  # fmt: skip


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, **more}}


ARCHITECTURES = [
    Architecture("llama", "LlamaForCausalLM", "grouped queries"),
    Architecture(
        "llama 3", "LlamaForCausalLM", "rope scaled by wavelength",
        scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
    ),
    Architecture("llama, linear", "LlamaForCausalLM", "rope scaled", scaled("linear")),
    Architecture(
        "llama, dynamic", "LlamaForCausalLM", "rope scaled as the context grows",
        {**scaled("dynamic"), "max_position_embeddings": ORIGINAL},
    ),
    Architecture(
        "llama, yarn", "LlamaForCausalLM", "rope scaled by YaRN",
        scaled("yarn", original_max_position_embeddings=ORIGINAL),
    ),
    Architecture("mistral", "MistralForCausalLM", "sliding window", {"sliding_window": WINDOW}),
    Architecture(
        "mixtral", "MixtralForCausalLM", "mixture of experts",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    Architecture(
        "qwen2", "Qwen2ForCausalLM", "windows in some layers",
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    ),
    Architecture(
        "qwen2-moe", "Qwen2MoeForCausalLM", "mixture of experts", {**EXPERTS, "shared_expert_intermediate_size": 24}
    ),
    Architecture("qwen3", "Qwen3ForCausalLM", "normalised queries and keys", {"head_dim": 8}),
    Architecture("qwen3-moe", "Qwen3MoeForCausalLM", "mixture of experts", {**EXPERTS, "head_dim": 8}),
    Architecture("gemma", "GemmaForCausalLM", "scaled embeddings", {"head_dim": 8}),
    Architecture(
        "gemma 2", "Gemma2ForCausalLM", "softcap, windows in some layers",
        {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    ),
    Architecture(
        "gemma 3", "Gemma3ForCausalLM", "windows in some layers, a rope for each kind",
        {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "layer_types": ALTERNATING},
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
    Architecture("granite", "GraniteForCausalLM", "scaled embeddings, residuals and logits"),
    Architecture("cohere", "CohereForCausalLM", "parallel"),
    Architecture(
        "cohere 2", "Cohere2ForCausalLM", "windows with rope in some layers, no positions in the others",
        {"sliding_window": WINDOW, "layer_types": ALTERNATING},
    ),
    Architecture("deepseek-v2", "DeepseekV2ForCausalLM", "MLA, mixture of experts", {**MLA, "q_lora_rank": None}),
    Architecture("deepseek-v3", "DeepseekV3ForCausalLM", "MLA, mixture of experts", {**MLA, "q_lora_rank": 16}),
    Architecture(
        "gpt-oss", "GptOssForCausalLM", "sinks, windows in some layers, mixture of experts",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": WINDOW,
         "layer_types": ALTERNATING},
    ),
]  # fmt: skip

CHECKS = "batched", "chunked", "preempted", "alone", "prefix-cached"


def table() -> str:
    rows = [
        ("architecture", "class in transformers", "what is special", *CHECKS),
        ("---",) * (3 + len(CHECKS)),
    ]
    rows += [(one.name, f"`{one.model}`", one.special, *("yes" for _ in CHECKS)) for one in ARCHITECTURES]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


class Counts(StatLoggerBase):
    def __init__(self, config: object = None, engine_index: int = 0) -> None:
        self.preemptions = self.hits = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats:
            self.preemptions += scheduler_stats.num_preemptions
            self.hits += scheduler_stats.prefix_cache_hits

    def log_engine_initialized(self) -> None: ...


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_greedy_output_equals_that_of_transformers(
    architecture: Architecture, tmp_path: Path, finish
) -> None:
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model = model_class(model_class.config_class(**SIZES | architecture.settings)).eval()
    model.set_attn_implementation("eager")  # the default of some releases ignores a softcap
    model.save_pretrained(tmp_path)
    prompts = [torch.randint(2, SIZES["vocab_size"], (1, length)) for length in LENGTHS]
    expected = [
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=architecture.name
            != "phi 3",  # some releases keep wrong entries when the factors change
            eos_token_id=None,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
        for prompt in prompts
    ]
    counts = Counts()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, max_model_len=48, block_size=BLOCK_SIZE,
            num_gpu_blocks_override=12, max_num_batched_tokens=16, max_num_seqs=8,
        ),
        stat_loggers={"counts": counts},
    )  # fmt: skip

    def greedy(*numbers: int) -> list[list[int]]:
        for place, number in enumerate(numbers):
            prompt = {"prompt_token_ids": prompts[number][0].tolist()}
            params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
            engine.add_request(str(place), prompt, params)
        last = finish(engine)
        return [last[str(place)].outputs[0].token_ids for place in range(len(numbers))]

    assert greedy(0, 1, 2, 0, 1, 2) == expected * 2  # batched, and in chunks
    assert counts.preemptions > 0
    assert engine.reset_prefix_cache()
    for number, tokens in enumerate(expected):
        counts.hits = 0
        assert greedy(number) == [tokens]  # alone
        assert counts.hits == 0
        assert greedy(number) == [tokens]  # from the cache, where its prompt fills a block
        assert counts.hits > 0 or LENGTHS[number] < BLOCK_SIZE


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("XGLMForCausalLM", {}, "2 layers, of which 0 call the attention interface"),
        ("DiffLlamaForCausalLM", {}, "2 layers, of which 2 call .* 4 times"),
        (
            "Llama4ForCausalLM",
            {"attention_chunk_size": WINDOW, "intermediate_size_mlp": 48, "num_local_experts": 2},
            "layer 0 of .* is of type chunked_attention",
        ),
        (
            "Qwen2MoeForCausalLM",
            {**EXPERTS, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
            "layer 0 of .* is of type sliding_attention, but attends with the window None",
        ),
        (
            "BartForCausalLM",
            {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4},
            "ignores position_ids",
        ),
        ("MptForCausalLM", {"d_model": 32}, "can't take one flat batch without a mask"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global"], 2]]}, "its attention can't be replaced"),
    ],
)
def test_model_that_would_be_computed_wrongly_is_refused(
    model: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model_class = getattr(transformers, model)
    model_class(model_class.config_class(**SIZES | settings)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=reason):
        LLMEngine.from_engine_args(EngineArgs(model=str(tmp_path), skip_tokenizer_init=True))


def test_documentation_has_a_row_for_each_architecture() -> None:
    assert table() in PAGE.read_text(), f"run python {__file__}"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition("| architecture |")
    PAGE.write_text(before + table() + rest[rest.index("\n\n") + 1 :])
