"""Models that this engine can't run, which it refuses by name, whatever transformers raises, without their weights."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_models import TINY, tiny_model

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.loader.probe import probe

pytestmark = pytest.mark.transformers

SIZES = TINY | {"vocab_size": 96, "head_dim": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "CodeGenForCausalLM": {},
    "FalconMambaForCausalLM": {},
    "Gemma3nForCausalLM": {"vocab_size_per_layer_input": 96},
    "JambaForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2},
    "DogeForCausalLM": {},
    "JetMoeForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "MambaForCausalLM": {},
    "RwkvForCausalLM": {},
    "RecurrentGemmaForCausalLM": {},
    "KimiLinearForCausalLM": {},
}


@pytest.mark.parametrize("model", MODELS)
def test_model_that_the_engine_cannot_run_is_refused_by_name_before_its_weights_are_read(
    tmp_path: Path, model: str
) -> None:
    config = getattr(transformers, model).config_class(**SIZES | MODELS[model])
    config.architectures = [model]
    config.save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    arguments = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, device="cpu")
    with pytest.raises(ValueError, match=model):
        LLMEngine.from_engine_args(arguments)


@pytest.mark.parametrize("failing", [1, 2])
def test_model_that_fails_in_one_of_the_first_forwards_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    model, calls = tiny_model("LlamaForCausalLM", vocab_size=96, **TINY), count(1)
    compute = model.model.forward

    def forward(*given: Any, **options: Any) -> Any:
        if next(calls) == failing:
            raise RuntimeError("no such size")
        return compute(*given, **options)

    monkeypatch.setattr(model.model, "forward", forward)

    with pytest.raises(
        UnsupportedModelError, match=r"^LlamaForCausalLM can't be built or run: RuntimeError: no such size$"
    ):
        probe(model, model.config, 4, torch.device("cpu"))
