"""Adapters of every architecture of docs/models.md that PEFT can adapt: greedy output equals that of PEFT's model."""

from pathlib import Path

import pytest
import torch
import transformers
from adapters import greedy, save_lora, save_prompt
from architectures import ARCHITECTURES, SIZES, Architecture

from engine_server import EngineArgs, LLMEngine, LoRARequest, PromptAdapterRequest, SamplingParams

pytestmark = pytest.mark.thorough

NEW_TOKENS = 6
LENGTHS = (3, 14, 37)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_greedy_output_with_adapters_equals_that_of_peft(
    architecture: Architecture, tmp_path: Path, finish
) -> None:
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model = model_class(model_class.config_class(**SIZES | architecture.settings)).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path / "base")
    kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    names = [name for name, module in model.named_modules() if isinstance(module, kinds) and "." in name]
    paths = [
        save_lora(model, tmp_path / str(seed), seed, target_modules=names, r=4 + seed) for seed in (1, 2)
    ]
    prompts = [torch.randint(2, SIZES["vocab_size"], (length,)).tolist() for length in LENGTHS]
    expected = {
        (number, place): greedy(model, path, prompt, NEW_TOKENS, use_cache=architecture.name != "phi 3")
        for number, path in enumerate([None, *paths])
        for place, prompt in enumerate(prompts)
    }
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), dtype="float32", skip_tokenizer_init=True, max_model_len=48,
            num_gpu_blocks_override=24, max_num_batched_tokens=16, max_num_seqs=4, enable_lora=True, max_loras=2,
        )
    )  # fmt: skip
    loras = [None, *(LoRARequest(str(number), number, str(path)) for number, path in enumerate(paths, 1))]
    for number, place in expected:
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
        prompt = {"prompt_token_ids": prompts[place]}
        engine.add_request(f"{number} {place}", prompt, params, lora_request=loras[number])
    last = finish(engine)
    found = {key: last[f"{key[0]} {key[1]}"].outputs[0] for key in expected}
    assert {key: (one.token_ids, one.stop_reason) for key, one in found.items()} == {
        key: (tokens, None) for key, tokens in expected.items()
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_greedy_output_with_prompt_adapters_equals_that_of_peft(
    architecture: Architecture, tmp_path: Path, finish
) -> None:
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model = model_class(model_class.config_class(**SIZES | architecture.settings)).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path / "base")
    adapters = [
        PromptAdapterRequest(
            kind, number, str(save_prompt(model, tmp_path / kind, number, kind, count)), count
        )
        for number, (kind, count) in enumerate((("PROMPT_TUNING", 5), ("P_TUNING", 30)), 1)
    ]
    prompts = [torch.randint(2, SIZES["vocab_size"], (length,)).tolist() for length in (3, 14)]
    # In the order of their lengths, since a dynamic rope of transformers keeps the factors of the longest so far.
    expected = {
        (number, place): greedy(
            model,
            None,
            prompt,
            NEW_TOKENS,
            architecture.name != "phi 3",
            Path(adapter.path) if adapter else None,
        )
        for number, adapter in enumerate([None, *adapters])
        for place, prompt in enumerate(prompts)
    }
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), dtype="float32", skip_tokenizer_init=True, max_model_len=52,
            num_gpu_blocks_override=24, max_num_batched_tokens=16, max_num_seqs=4, enable_prompt_adapter=True,
        )
    )  # fmt: skip
    for number, place in expected:
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
        prompt = {"prompt_token_ids": prompts[place]}
        named = adapters[number - 1] if number else None
        engine.add_request(f"{number} {place}", prompt, params, prompt_adapter_request=named)
    last = finish(engine)
    found = {key: last[f"{key[0]} {key[1]}"].outputs[0] for key in expected}
    assert {key: (one.token_ids, one.stop_reason) for key, one in found.items()} == {
        key: (tokens, None) for key, tokens in expected.items()
    }
