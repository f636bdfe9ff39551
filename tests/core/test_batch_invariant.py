"""The whole engine with batch_invariant on a CPU: tokens and log-probabilities are bitwise independent of the batch."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from native_kernels import needs_kernels
from tiers import tiered
from tiny_models import TINY
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core import model_runner
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import CpuPlatform

SIZES = TINY | {"vocab_size": 128, "max_position_embeddings": 128, "eos_token_id": 1, "bos_token_id": 0}
PROMPT = [place * 7 % 120 + 3 for place in range(45)]
OTHERS = [[(11 * place + length) % 120 + 3 for place in range(length % 40 + 1)] for length in range(63)]
# Tokens, and their log-probabilities with those of the likeliest others.
Answer = tuple[list[int], list[dict[int, float]]]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model whose heads of query and key are normed within the fused product, and whose vocabulary is odd."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen3")
    sizes = SIZES | {"vocab_size": 131, "head_dim": 32, "hidden_size": 64}
    Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model with GELU gates and norms whose weights are offsets from one."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gemma")
    sizes = SIZES | {"head_dim": 32, "hidden_size": 64}
    GemmaForCausalLM(GemmaConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model with layer norms, biases and an activation without a gate."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(GPT2Config(**SIZES | {"hidden_size": 64})).save_pretrained(folder)
    return folder


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def start(model: Path, **options: Any) -> LLMEngine:
    settings: dict[str, Any] = {
        "model": str(model), "skip_tokenizer_init": True, "max_model_len": 64, "num_gpu_blocks_override": 400,
        "max_num_batched_tokens": 256, "batch_invariant": True, "disable_log_stats": True,
    }  # fmt: skip
    return LLMEngine.from_engine_args(EngineArgs(**settings | options))


def answer(engine: LLMEngine, prompts: list[list[int]], temperature: float) -> Answer:
    """Return the answer to the first prompt; all run together."""
    params = SamplingParams(
        temperature=temperature, top_p=0.9, seed=7, max_tokens=6, min_tokens=6, detokenize=False, logprobs=3
    )
    for number, prompt in enumerate(prompts):
        engine.add_request(number, {"prompt_token_ids": prompt}, params)
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output.outputs[0] for output in engine.step()}
    found = last["0"]
    return found.token_ids, [
        {token: entry.logprob for token, entry in position.items()} for position in found.logprobs
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {
        "dtype": "bfloat16",
        "quantization": "int8",
        "quantization_group_size": 16,
        "quantize_head": True,
    },
    "int8 cache": {"dtype": "float32", "kv_cache_dtype": "int8"},
}


@needs_kernels
@pytest.mark.parametrize(
    ("model", "form", "temperature"),
    tiered(
        product(["tiny_llama", "qwen3", "gemma", "gpt2"], OPTIONS, [0.0, 1.0]),
        ("qwen3", "bfloat16", 1.0),
        more=[("tiny_llama", "int8", 0.0), ("gemma", "float32", 0.0), ("gpt2", "int8 cache", 1.0)],
    ),
)
def test_answer_is_bitwise_independent_of_batch_chunks_cache_and_threads(
    model: str, form: str, temperature: float, request, restored_threads
) -> None:
    folder: Path = request.getfixturevalue(model)
    options = OPTIONS[form]
    torch.set_num_threads(1)
    alone = start(folder, enable_prefix_caching=False, **options)
    expected = answer(alone, [PROMPT], temperature)
    assert answer(alone, [PROMPT, *OTHERS], temperature) == expected
    chunked = start(folder, max_num_batched_tokens=16, **options)
    assert answer(chunked, [PROMPT, *OTHERS[:8]], temperature) == expected
    assert answer(chunked, [PROMPT], temperature) == expected  # the prompt is in the prefix cache
    torch.set_num_threads(2)
    threaded = start(folder, enable_prefix_caching=False, **options)
    assert answer(threaded, [PROMPT], temperature) == expected
    assert answer(threaded, [PROMPT, *OTHERS], temperature) == expected


@needs_kernels
@pytest.mark.thorough
def test_smollm2_in_float32_answers_with_the_same_bits_alone_and_among_others(smollm2: Path) -> None:
    engine = start(smollm2, dtype="float32", enable_prefix_caching=False, num_gpu_blocks_override=40)
    alone = answer(engine, [PROMPT], 0.0)
    assert answer(engine, [PROMPT, *OTHERS[:5]], 0.0) == alone


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "config", "options", "message"),
    [
        (MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=2), {}, r"order of summation in Mixtral"),
        pytest.param(
            Qwen3ForCausalLM, Qwen3Config(**SIZES | {"hidden_act": "mish"}, head_dim=16), {},
            r"rounding of MishActivation of Qwen3ForCausalLM is unknown", marks=pytest.mark.more,
        ),
        pytest.param(
            Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=8), {},
            r"rounding of FusedRMSNorm .* no multiple of 16", marks=pytest.mark.more,
        ),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), {"block_size": 8}, r"block_size of 8"),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), {"dtype": "float16"}, r"float16"),
    ],
)  # fmt: skip
def test_operations_that_may_depend_on_the_batch_are_refused(
    tmp_path: Path, kind: Any, config: Any, options: dict[str, Any], message: str
) -> None:
    kind(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        start(tmp_path, **{"dtype": "float32"} | options)


@pytest.fixture
def without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide AMX, with which oneDNN multiplies where our kernels may not."""
    capabilities = torch.cpu.get_capabilities()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities | {"amx_bf16": False})


def is_invariant(engine: LLMEngine) -> bool:
    return engine.config.model_config.batch_invariant


@needs_kernels
@pytest.mark.parametrize(
    "options",
    tiered([{}, {"quantization": "int8", "quantization_group_size": 16}, {"kv_cache_dtype": "int8"}], {}),
)
def test_bfloat16_is_batch_invariant_by_default(qwen3: Path, options: dict[str, Any], without_tiles) -> None:
    engine = start(qwen3, dtype="bfloat16", batch_invariant=None, enable_prefix_caching=False, **options)
    assert is_invariant(engine)
    alone = answer(engine, [PROMPT], 0.0)
    assert answer(engine, [PROMPT, *OTHERS], 0.0) == alone


@needs_kernels
def test_batch_invariance_can_be_turned_off(tiny_llama: Path, without_tiles) -> None:
    assert not is_invariant(start(tiny_llama, dtype="bfloat16", batch_invariant=False))


@needs_kernels
def test_float32_is_batch_invariant_by_default(tiny_llama: Path) -> None:
    assert is_invariant(start(tiny_llama, dtype="float32", batch_invariant=None))


@needs_kernels
@pytest.mark.parametrize(("level", "invariant"), [("avx512-vnni", False), ("amx", True)])
def test_bfloat16_is_batch_invariant_by_default_on_amx_unless_only_onednn_uses_it(
    level: str, invariant: bool, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = torch.cpu.get_capabilities()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities | {"amx_bf16": True})
    monkeypatch.setattr(library.kernels(), "level", level)
    assert is_invariant(start(tiny_llama, dtype="bfloat16", batch_invariant=None)) == invariant


@pytest.mark.transformers
@needs_kernels
@pytest.mark.parametrize(
    ("kind", "config", "options", "reason"),
    [
        (MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=2), {}, "order of summation in Mixtral"),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=8), {}, "no multiple of 16"),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), {"block_size": 8}, "block_size of 8"),
        pytest.param(
            Qwen3ForCausalLM, Qwen3Config(**SIZES | {"intermediate_size": 63, "hidden_act": "relu"}, head_dim=16), {},
            r"products of (Packed|Dense)Format", marks=pytest.mark.more,
        ),
    ],
)  # fmt: skip
def test_unsupported_layers_turn_the_default_off_with_a_logged_reason(
    tmp_path: Path, kind: Any, config: Any, options: dict[str, Any], reason: str, without_tiles, caplog
) -> None:
    kind(config).save_pretrained(tmp_path)
    caplog.set_level("INFO", logger="engine_server")
    engine = start(tmp_path, dtype="bfloat16", batch_invariant=None, **options)
    assert not is_invariant(engine)
    lines = [line for line in caplog.messages if "results may depend on batch composition" in line]
    assert len(lines) == 1
    assert re.search(reason, lines[0])


def test_cpu_without_kernels_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: CpuPlatform())
    with pytest.raises(ValueError, match=r"with the kernels that g\+\+ compiles; this is 1 cpu without them"):
        start(tiny_llama)
