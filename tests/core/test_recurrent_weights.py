"""Mixers of recurrent layers with other weights than a checkpoint's: rounded at load, or changed by an adapter."""

from collections.abc import Callable
from pathlib import Path

import pytest
from adapters import save_lora
from peft import PeftModel
from recurrent_models import check_greedy, save_recurrent
from torch import nn

from engine_server import EngineArgs, LLMEngine, LoRARequest, RequestOutput, SamplingParams
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.rounding import rounded_to_integers
from engine_server.modeling.native import library

pytestmark = pytest.mark.transformers

PROMPTS = [list(range(2, 2 + length)) for length in (5, 30)]
Finish = Callable[[LLMEngine], dict[str, RequestOutput]]
# The linear layers of each family's mixers.
by_family = pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("Qwen3_5ForCausalLM", ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]),
        ("Lfm2ForCausalLM", ["in_proj", "out_proj"]),
        ("GraniteMoeHybridForCausalLM", ["in_proj", "out_proj"]),
    ],
)


def outputs(
    folder: Path, finish: Finish, adapter: LoRARequest | None = None, **options: object
) -> list[list[int]]:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="float32", skip_tokenizer_init=True, disable_log_stats=True, max_model_len=64,
            num_gpu_blocks_override=20, max_num_batched_tokens=12, **options,
        )
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params, lora_request=adapter)
    last = finish(engine)
    return [list(last[str(number)].outputs[0].token_ids) for number in range(len(PROMPTS))]


@by_family
def test_weights_of_mixers_are_rounded_at_load(
    family: str, layers: list[str], tmp_path: Path, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "obstacle", lambda: "they round activations too")
    model = save_recurrent(family, tmp_path)
    dense = outputs(tmp_path, finish)
    found = outputs(tmp_path, finish, quantization="int4", quantization_group_size=16)
    names = []
    for name, module in model.model.named_modules():
        if isinstance(module, nn.Linear):
            rounded = rounded_to_integers(DenseFormat(module.weight.data), 4, 16)
            module.weight.data = rounded.dense()
            names.append(name.split(".")[-1])
    assert set(layers) <= set(names)
    for prompt, output in zip(PROMPTS, found, strict=True):
        check_greedy(model, prompt, output)
    assert found != dense


@by_family
def test_adapter_changes_a_mixer(family: str, layers: list[str], tmp_path: Path, finish: Finish) -> None:
    folder, adapter = tmp_path / "model", tmp_path / "adapter"
    model = save_recurrent(family, folder)
    save_lora(model, adapter, seed=3, target_modules=layers)
    found = outputs(folder, finish, LoRARequest("mixers", 1, str(adapter)), enable_lora=True)
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    for prompt, output in zip(PROMPTS, found, strict=True):
        check_greedy(merged, prompt, output)
    assert found != outputs(folder, finish)
