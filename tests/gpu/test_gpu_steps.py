"""Greedy tokens of every kind of step on a GPU, judged by the CPU. A thorough test tries the same on the CPU."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_references import EXPERTS_SETTINGS
from adapters import save_lora
from native_kernels import needs_kernels
from step_counts import Counts
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from engine_server import EngineArgs, LLMEngine, LoRARequest, RequestOutput, SamplingParams

NUM_PROMPTS, LONGEST, NEW_TOKENS, VOCABULARY = 16, 436, 24, 512
LENGTHS = [1 + (LONGEST - 1) * number // (NUM_PROMPTS - 1) for number in range(NUM_PROMPTS)]
PROMPTS = [
    [2 + (7 * place + 31 * length) % (VOCABULARY - 2) for place in range(length)] for length in LENGTHS
]
SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "initializer_range": 0.1,
    "tie_word_embeddings": False, "eos_token_id": 1, "bos_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kind of model, and how far below the CPU's likeliest token, in nats, a token of the GPU may be."""

    name: str
    tolerance: float
    # The type in which the GPU computes. The CPU computes in float32.
    dtype: str = "float32"
    experts: int = 0
    adapters: int = 0
    # PEFT's settings of the adapters.
    adapted: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> list[LoRARequest | None]:
        """Save a random model and its adapters, and return the one of each prompt."""
        torch.manual_seed(0)
        if self.experts:
            # Every token goes to all experts: a choice between two that are close would differ by rounding.
            counts = {"num_local_experts": self.experts, "num_experts_per_tok": self.experts}
            model = MixtralForCausalLM(MixtralConfig(**SIZES, **counts))
        else:
            model = LlamaForCausalLM(LlamaConfig(**SIZES))
        model.to(getattr(torch, self.dtype)).save_pretrained(folder)
        loras: list[LoRARequest | None] = [
            LoRARequest(
                f"{seed}", seed, str(save_lora(model, folder / f"adapter-{seed}", seed, **self.adapted))
            )
            for seed in range(1, self.adapters + 1)
        ]
        loras.append(None)
        return [loras[number % len(loras)] for number in range(NUM_PROMPTS)]


WITH_ADAPTERS = {"enable_lora": True, "max_loras": 2}
CASES = [
    Case("dense", 1e-3),
    Case("mixture", 0.2, dtype="bfloat16", experts=4),
    Case("quantised", 0.2, options={"quantization": "int8"}),
    Case("adapters", 1e-3, adapters=2, options=WITH_ADAPTERS),
    Case(
        "adapters of experts",
        0.2,
        dtype="bfloat16",
        experts=4,
        adapters=2,
        adapted=EXPERTS_SETTINGS[0],
        options=WITH_ADAPTERS,
    ),
]
EAGER = {"enforce_eager": True, "async_scheduling": False}
STEPS: dict[str, dict[str, Any]] = {
    "eager": EAGER,
    "captured": {"async_scheduling": False},
    "overlapped": {"async_scheduling": True},
    "batch-invariant": {"batch_invariant": True},
}


# A GPU cannot sum up those of the other models in a fixed order.
RUNS = [
    (case, steps) for case in CASES for steps in STEPS if steps != "batch-invariant" or case.name == "dense"
]


@pytest.fixture(params=[pytest.param("cpu", marks=[pytest.mark.thorough, needs_kernels]), "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return str(request.param)


@pytest.mark.parametrize(("case", "steps"), RUNS, ids=[f"{case.name}-{steps}" for case, steps in RUNS])
def test_tokens_of_the_device_are_the_cpus_likeliest(
    case: Case, steps: str, device: str, tmp_path: Path, finish
) -> None:
    """Prompts in chunks share steps with decodes; each token is compared with the CPU's choice after those before."""
    loras = case.save(tmp_path)
    counts = Counts()
    kernels = "triton" if device == "cuda" else "auto"
    options = case.options | STEPS[steps] | {"kernels": kernels}
    engine = start(tmp_path, device, dtype=case.dtype, counts=counts, **options)
    outputs = run(engine, finish, PROMPTS, loras, max_tokens=NEW_TOKENS)
    made = [outputs[str(number)].outputs[0].token_ids for number in range(NUM_PROMPTS)]
    assert counts.replayed == (0 if steps == "eager" else counts.steps)
    assert all(len(tokens) == NEW_TOKENS for tokens in made)

    judge = start(tmp_path, "cpu", dtype="float32", **case.options | EAGER)
    whole = [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, made, strict=True)]
    judged = run(judge, finish, whole, loras, max_tokens=1, prompt_logprobs=1)
    gaps = [gap for number in range(NUM_PROMPTS) for gap in gaps_of(judged[str(number)])]
    assert max(gaps) < case.tolerance


def start(model: Path, device: str, dtype: str, counts: Counts | None = None, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), device=device, dtype=dtype, skip_tokenizer_init=True, max_model_len=480,
            kv_cache_memory_bytes=64 << 20, max_num_batched_tokens=128, max_num_seqs=8, **options,
        ),
        stat_loggers={"counts": counts} if counts else {},
    )  # fmt: skip


def run(
    engine: LLMEngine, finish, prompts: list[list[int]], loras: list[LoRARequest | None], **params: Any
) -> dict[str, RequestOutput]:
    """Return the last output of each prompt, all requested at once."""
    greedy = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **params)
    for number, (prompt, lora) in enumerate(zip(prompts, loras, strict=True)):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy, lora_request=lora)
    return finish(engine)


def gaps_of(output: RequestOutput) -> list[float]:
    """Return by how much each of the last NEW_TOKENS tokens of the prompt is less likely than the likeliest one."""
    assert output.prompt_token_ids is not None and output.prompt_logprobs is not None
    given = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return [
        max(one.logprob for one in likely.values()) - likely[token].logprob
        for token, likely in [*given][-NEW_TOKENS:]
        if likely is not None
    ]
