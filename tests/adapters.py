"""LoRA adapters made by PEFT for the tests, with random weights that change the output."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel


def save_lora(model: PreTrainedModel, folder: Path, seed: int, **settings: Any) -> Path:
    """Save a LoRA adapter of `model` and return its folder; the model stays as it is."""
    torch.manual_seed(seed)
    with_adapter = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8} | settings))
    for name, parameter in with_adapter.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) / 4
    with_adapter.save_pretrained(str(folder))
    with_adapter.unload()
    return folder


def greedy(
    model: PreTrainedModel, adapter: Path | None, prompt: list[int], count: int, use_cache: bool = True
) -> list[int]:
    """Return the `count` likeliest tokens after a prompt, by PEFT's own model."""
    applied = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    given = torch.tensor([prompt])
    generated = applied.generate(
        input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False,
        eos_token_id=None, pad_token_id=0, use_cache=use_cache,
    )  # fmt: skip
    if adapter is not None:
        applied.unload()
    return generated[0, len(prompt) :].tolist()
