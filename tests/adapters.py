"""Adapters made by PEFT for the tests, with random weights that change the output."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, PromptEncoderConfig, PromptTuningConfig, get_peft_model
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


def save_prompt(model: PreTrainedModel, folder: Path, seed: int, kind: str, count: int) -> Path:
    """Save a prompt adapter of `model` with `count` virtual tokens and return its folder.

    kind: "PROMPT_TUNING" or "P_TUNING".
    """
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": count}
    if kind == "P_TUNING":
        adapted = get_peft_model(model, PromptEncoderConfig(encoder_hidden_size=16, **settings))
    else:
        adapted = get_peft_model(model, PromptTuningConfig(**settings))
    for parameter in adapted.prompt_encoder.parameters():
        parameter.data = torch.randn_like(parameter)
    adapted.save_pretrained(str(folder))
    return folder


def greedy(
    model: PreTrainedModel,
    adapter: Path | None,
    prompt: list[int],
    count: int,
    use_cache: bool = True,
    prompt_adapter: Path | None = None,
) -> list[int]:
    """Return the `count` likeliest tokens after a prompt, by PEFT's own model.

    adapter: a LoRA adapter. prompt_adapter: one of virtual tokens, also together with it.
    """
    lora = applied = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    if prompt_adapter is not None:
        base = model if adapter is None else lora.get_base_model()
        applied = PeftModel.from_pretrained(base, str(prompt_adapter))
        applied.word_embeddings = base.get_input_embeddings()  # with the LoRA adapter's part, if it has one
    given = torch.tensor([prompt])
    generated = applied.generate(
        input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False,
        eos_token_id=None, pad_token_id=0, use_cache=use_cache,
    )  # fmt: skip
    if adapter is not None:
        lora.unload()
    return generated[0, len(prompt) :].tolist()
