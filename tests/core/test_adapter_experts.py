"""Adapters of the stacked weights of experts: greedy output equals that of PEFT's model, also in mixed batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from adapters import greedy, save_lora
from architectures import EXPERTS, SIZES

from engine_server import EngineArgs, LLMEngine, LoRARequest, SamplingParams

NEW_TOKENS = 6
PROMPTS = [[3, 4, 5], [7, 8, 9] * 5, list(range(20, 57))]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "head_dim": 8}),
    "gpt-oss": ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
}
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
ADAPTERS: list[dict[str, Any]] = [
    {"target_modules": [], "target_parameters": [DOWN, GATE_UP], "r": 3},
    {"target_modules": ["q_proj", "o_proj"], "target_parameters": [GATE_UP]},
    {"target_modules": [], "target_parameters": [DOWN], "rank_pattern": {"down_proj": 2}},
]


CASES = [
    *(pytest.param(model, {}, id=f"{model}, captured") for model in MODELS),
    *(pytest.param(model, {"enforce_eager": True}, id=f"{model}, eager") for model in MODELS),
    pytest.param("qwen3-moe", {"tensor_parallel_size": 2, "device": "cpu"}, id="qwen3-moe, two ranks"),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_greedy_output_with_adapted_experts_equals_that_of_peft(
    name: str, options: dict[str, Any], tmp_path: Path, finish
) -> None:
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**SIZES | settings)).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path / "base")
    paths = [save_lora(model, tmp_path / str(seed), seed, **own) for seed, own in enumerate(ADAPTERS, 1)]
    expected = {
        (number, place): greedy(model, path, prompt, NEW_TOKENS)
        for number, path in enumerate([None, *paths])
        for place, prompt in enumerate(PROMPTS)
    }
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), dtype="float32", skip_tokenizer_init=True, max_model_len=48,
            num_gpu_blocks_override=32, max_num_batched_tokens=16, max_num_seqs=6, enable_lora=True, max_loras=3,
            **options,
        )
    )  # fmt: skip
    loras = [None, *(LoRARequest(str(number), number, str(path)) for number, path in enumerate(paths, 1))]
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    for number, place in expected:
        prompt = {"prompt_token_ids": PROMPTS[place]}
        engine.add_request(f"{number} {place}", prompt, params, lora_request=loras[number])
    last = finish(engine)
    assert {key: last[f"{key[0]} {key[1]}"].outputs[0].token_ids for key in expected} == expected


def test_adapter_of_other_experts_is_refused(tmp_path: Path) -> None:
    kind, settings = MODELS["qwen3-moe"]
    model_class = getattr(transformers, kind)
    for name, more in (("base", {}), ("other", {"num_experts": 3})):
        model = model_class(model_class.config_class(**SIZES | settings | more)).eval()
        model.save_pretrained(tmp_path / name)
    path = save_lora(model, tmp_path / "adapter", 1, target_modules=[], target_parameters=[DOWN])
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), dtype="float32", skip_tokenizer_init=True, max_model_len=48,
            num_gpu_blocks_override=8, enable_lora=True,
        )
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"the model has 4 experts, and .* rank 4 for each"):
        engine.add_lora(LoRARequest("other", 1, str(path)))
