"""Adapters of every architecture of docs/models.md that PEFT can adapt: greedy output equals that of PEFT's model."""

from pathlib import Path

import pytest
import torch
import transformers
from adapter_references import check_outputs, random_model, random_prompts, refer
from adapters import save_lora, save_prompt
from architectures import ARCHITECTURES, Architecture
from transformers.models.llama4.modeling_llama4 import Llama4Router

from engine_server import LoRARequest, PromptAdapterRequest

pytestmark = pytest.mark.thorough

LINEAR = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
# Architectures whose reference is computed without a cache.
UNCACHED = ("phi 3",)
by_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=lambda architecture: architecture.name
)


@pytest.mark.transformers
@by_architecture
def test_greedy_output_with_adapters_equals_that_of_peft(
    architecture: Architecture, tmp_path: Path, finish
) -> None:
    model = random_model(architecture, tmp_path / "base")
    linear = {name: module for name, module in model.named_modules() if isinstance(module, LINEAR)}
    # Llama 4's router is a linear layer with two results, which PEFT cannot adapt.
    targets = [
        name for name, module in linear.items() if "." in name and not isinstance(module, Llama4Router)
    ]
    loras = [
        LoRARequest(
            str(seed),
            seed,
            str(save_lora(model, tmp_path / str(seed), seed, target_modules=targets, r=4 + seed)),
        )
        for seed in (1, 2)
    ]
    prompts = random_prompts(3, 14, 37)
    reference = refer(model, tmp_path / "base", loras, prompts, architecture.name not in UNCACHED)
    check_outputs(reference, finish, max_num_seqs=4, enable_lora=True, max_loras=2)


@pytest.mark.parametrize(
    "architecture",
    [one for one in ARCHITECTURES if not one.settings.get("hidden_size_per_layer_input")],
    ids=lambda architecture: architecture.name,
)
def test_greedy_output_with_prompt_adapters_equals_that_of_peft(
    architecture: Architecture, tmp_path: Path, finish
) -> None:
    model = random_model(architecture, tmp_path / "base")
    adapters = [
        PromptAdapterRequest(
            kind, number, str(save_prompt(model, tmp_path / kind, number, kind, count)), count
        )
        for number, (kind, count) in enumerate((("PROMPT_TUNING", 5), ("P_TUNING", 30)), 1)
    ]
    # In the order of their lengths, since a dynamic rope of transformers keeps the factors of the longest so far.
    prompts = random_prompts(3, 14)
    reference = refer(model, tmp_path / "base", adapters, prompts, architecture.name not in UNCACHED)
    check_outputs(reference, finish, max_num_seqs=4, enable_prompt_adapter=True)
