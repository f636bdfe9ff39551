"""LoRA adapters of pooling models: the states and scores of PEFT's own model, beside requests without adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from adapters import save_lora
from peft import PeftModel
from tiers import tiered
from tiny_models import TINY

from engine_server import EngineArgs, LLMEngine, LoRARequest, PoolingParams

pytestmark = pytest.mark.transformers

PROMPTS = [[5, 6, 7, 8, 9], [11], list(range(20, 60))]
MODELS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "encoder": ("BertModel", {}, ["query", "value", "intermediate.dense", "word_embeddings"]),
    "decoder": ("LlamaModel", {}, ["q_proj", "v_proj", "down_proj", "embed_tokens"]),
    "classifier": ("BertForSequenceClassification", {"num_labels": 3}, ["query", "key", "output.dense"]),
}


@pytest.mark.parametrize("name", tiered(MODELS, "decoder", "classifier"))
def test_results_equal_those_of_peft_in_a_mixed_batch(name: str, tmp_path: Path, finish) -> None:
    kind, settings, targets = MODELS[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    sizes = TINY | {"vocab_size": 96, "pad_token_id": 0}
    model = model_class(model_class.config_class(**sizes | settings)).eval()
    model.save_pretrained(tmp_path / "base")
    adapters = [
        save_lora(model, tmp_path / str(seed), seed, target_modules=targets, r=4 + seed) for seed in (1, 2)
    ]
    expected = {
        (number, place): results(model, adapter, prompt)
        for number, adapter in enumerate([None, *adapters])
        for place, prompt in enumerate(PROMPTS)
    }
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path / "base"), runner="pooling", dtype="float32", skip_tokenizer_init=True,
            max_model_len=48, max_num_batched_tokens=48, num_gpu_blocks_override=16, enable_lora=True, max_loras=2,
        )
    )  # fmt: skip
    loras = [None, *(LoRARequest(str(number), number, str(path)) for number, path in enumerate(adapters, 1))]
    params = PoolingParams(task="classify" if "num_labels" in settings else "encode", use_activation=False)
    for number, place in expected:
        prompt = {"prompt_token_ids": PROMPTS[place]}
        engine.add_request(f"{number} {place}", prompt, params, lora_request=loras[number])
    last = finish(engine)
    for (number, place), result in expected.items():
        output = last[f"{number} {place}"].outputs
        found = torch.as_tensor(output.probs if "num_labels" in settings else output.data)
        torch.testing.assert_close(found, result, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected[0, 0], expected[1, 0], atol=1e-2)


def results(model: transformers.PreTrainedModel, adapter: Path | None, prompt: list[int]) -> torch.Tensor:
    """Return PEFT's states [tokens, hidden] of a prompt, or its scores [labels] if the model classifies."""
    applied = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        outputs = applied(input_ids=torch.tensor([prompt]))
    if adapter is not None:
        applied.unload()
    return outputs["logits" if "logits" in outputs else "last_hidden_state"][0]
