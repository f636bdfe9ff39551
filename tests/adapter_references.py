"""Tiny models with adapters, PEFT's greedy output with each of them, and the comparison of an engine with that."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from adapters import greedy, save_lora
from architectures import ARCHITECTURES, SIZES, Architecture
from safetensors.torch import load_file
from transformers import PreTrainedModel

from engine_server import EngineArgs, LLMEngine, LoRARequest, PromptAdapterRequest, SamplingParams

NEW_TOKENS = 6
# The architectures with experts whose adapters are compared with PEFT.
MIXTURES = [one for one in ARCHITECTURES if "mixture of experts" in one.special]
# Those whose routers are modules with a weight. Gemma 4's contains a linear layer, Llama 4's is one with two results.
ROUTED = [one for one in MIXTURES if one.model not in ("Gemma4ForCausalLM", "Llama4ForCausalLM")]
EXPERTS_PROMPTS = [[3, 4, 5], [7, 8, 9] * 5, list(range(20, 57))]
GATE_UP, DOWN = "experts.gate_up_proj", "experts.down_proj"
# PEFT's settings of adapters of experts.
EXPERTS_SETTINGS: list[dict[str, Any]] = [
    {"target_modules": [], "target_parameters": [DOWN, GATE_UP], "r": 3},
    {"target_modules": ["o_proj"], "target_parameters": [GATE_UP]},
    {"target_modules": [], "target_parameters": [DOWN], "rank_pattern": {"down_proj": 2}},
]

# The weights of routers that PEFT's "all-linear" leaves out, by architecture.
NAMED_ROUTERS = {"gpt-oss": "router.weight", "qwen2-moe": "gate.weight"}


class Reference(NamedTuple):
    """A model, and PEFT's greedy output for every prompt with every adapter; None: without one."""

    base: Path
    adapters: list[LoRARequest | PromptAdapterRequest | None]
    prompts: list[list[int]]
    # By adapter, then by prompt.
    outputs: list[list[list[int]]]

    def of_first_prompts(self, count: int) -> "Reference":
        """Return the part with the first prompts alone."""
        return self._replace(prompts=self.prompts[:count], outputs=[row[:count] for row in self.outputs])


def random_model(architecture: Architecture, folder: Path) -> PreTrainedModel:
    """Save a tiny random model, and return it."""
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model: PreTrainedModel = model_class(model_class.config_class(**SIZES | architecture.settings)).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    return model


def random_prompts(*lengths: int) -> list[list[int]]:
    return [torch.randint(2, SIZES["vocab_size"], (length,)).tolist() for length in lengths]


def refer(
    model: PreTrainedModel,
    base: Path,
    adapters: Sequence[LoRARequest | PromptAdapterRequest],
    prompts: list[list[int]],
    use_cache: bool = True,
) -> Reference:
    """Compute the outputs of a model that was saved in `base`."""
    every = [None, *adapters]
    outputs = []
    for adapter in every:
        lora = Path(adapter.path) if isinstance(adapter, LoRARequest) else None
        virtual = Path(adapter.path) if isinstance(adapter, PromptAdapterRequest) else None
        outputs.append([greedy(model, lora, prompt, NEW_TOKENS, use_cache, virtual) for prompt in prompts])
    return Reference(base, every, prompts, outputs)


def refer_experts(architecture: Architecture, folder: Path) -> Reference:
    """Compute the outputs of a mixture of experts with adapters that change these."""
    model = random_model(architecture, folder / "base")
    loras = [
        LoRARequest(str(seed), seed, str(save_lora(model, folder / str(seed), seed, **settings)))
        for seed, settings in enumerate(EXPERTS_SETTINGS, 1)
    ]
    return refer(model, folder / "base", loras, EXPERTS_PROMPTS)


def refer_all_linear(architecture: Architecture, folder: Path) -> Reference:
    """Compute the outputs of a mixture with adapters of all its linear layers and of its routers."""
    model = random_model(architecture, folder / "base")
    settings: dict[str, Any] = {"target_modules": "all-linear"}
    if architecture.name in NAMED_ROUTERS:
        settings["target_parameters"] = [NAMED_ROUTERS[architecture.name]]
    loras = [
        LoRARequest(str(seed), seed, str(save_lora(model, folder / str(seed), seed, r=seed, **settings)))
        for seed in (1, 3)
    ]
    for lora in loras:
        tensors = load_file(Path(lora.path) / "adapter_model.safetensors")
        assert any(".gate.lora_A" in name or ".router.lora_A" in name for name in tensors)
    return refer(model, folder / "base", loras, EXPERTS_PROMPTS)


def check_outputs(reference: Reference, finish: Callable[..., Any], **options: Any) -> None:
    """Check an engine's output for every prompt with every adapter, all requested at once."""
    usual = {
        "model": str(reference.base), "dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 52,
        "num_gpu_blocks_override": 32, "max_num_batched_tokens": 16, "max_num_seqs": 6,
    }  # fmt: skip
    engine = LLMEngine.from_engine_args(EngineArgs(**usual | options))
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    for number, adapter in enumerate(reference.adapters):
        lora = adapter if isinstance(adapter, LoRARequest) else None
        virtual = adapter if isinstance(adapter, PromptAdapterRequest) else None
        for place, prompt in enumerate(reference.prompts):
            engine.add_request(
                f"{number} {place}", {"prompt_token_ids": prompt}, params,
                lora_request=lora, prompt_adapter_request=virtual,
            )  # fmt: skip
    last = finish(engine)
    engine.check_integrity()
    found = [
        [last[f"{number} {place}"].outputs[0] for place in range(len(reference.prompts))]
        for number in range(len(reference.adapters))
    ]
    assert [[output.token_ids for output in row] for row in found] == reference.outputs
    assert all(output.stop_reason is None for row in found for output in row)
