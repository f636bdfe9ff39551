"""The whole engine in batch-invariant mode: log-probabilities are bitwise independent of batch composition."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from interpreted import kernel_platform
from tiny_models import TINY
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core import model_runner

SIZES = TINY | {"vocab_size": 128, "max_position_embeddings": 128, "eos_token_id": 1, "bos_token_id": 0}
PROMPTS = [[(7 * place + length) % 126 + 2 for place in range(length)] for length in (38, 20, 1)]


@pytest.fixture(autouse=True)
def with_kernels(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: kernel_platform(device))


def start(model: Path, budget: int, seats: int, **options: str) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=budget, max_num_seqs=seats, batch_invariant=True, disable_log_stats=True,
            enforce_eager=not torch.cuda.is_available(), **options,
        )
    )  # fmt: skip


def answer(engine: LLMEngine, prompts: list[list[int]]) -> list[tuple[list[int], float | None]]:
    """Return each prompt's output tokens and their log-probability."""
    params = SamplingParams(temperature=0, max_tokens=3, min_tokens=3, detokenize=False, logprobs=0)
    for number, prompt in enumerate(prompts):
        engine.add_request(number, {"prompt_token_ids": prompt}, params)
    last = {}
    while engine.has_unfinished_requests():
        last |= {int(output.request_id): output.outputs[0] for output in engine.step()}
    return [(last[number].token_ids, last[number].cumulative_logprob) for number in range(len(prompts))]


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def mixture() -> PreTrainedModel:
    counts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **counts, head_dim=8))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
@pytest.mark.parametrize("make", [llama, mixture])
def test_batch_invariant_engine_gives_the_same_logprobs_in_any_batch(
    make: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    """Requests run one by one, each whole; together, in chunks; and with the cache that this leaves."""
    torch.manual_seed(0)
    make().save_pretrained(tmp_path)
    expected = answer(start(tmp_path, budget=64, seats=1), PROMPTS)
    together = start(tmp_path, budget=21, seats=3)
    assert answer(together, PROMPTS) == expected
    assert answer(together, PROMPTS[:1]) == expected[:1]


def test_batch_invariant_engine_refuses_modules_with_an_unknown_order_of_sums(tmp_path: Path) -> None:
    counts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 0}
    Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **counts)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"order of summation in Glm4MoeTopkRouter of Glm4MoeForCausalLM"):
        start(tmp_path, budget=64, seats=1)


def test_batch_invariant_engine_refuses_quantised_weights_on_a_gpu(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="batch_invariant on a GPU takes weights that are not quantized"):
        start(tiny_llama, budget=64, seats=1, quantization="int8")
