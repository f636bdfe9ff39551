"""Greedy output in float32 is transformers' own, token for token, however the work is cut."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_server import EngineArgs, LLMEngine, SamplingParams

NEW_TOKENS = 5
LENGTHS = [
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    12,
    15,
    16,
    17,
    20,
    24,
    31,
    32,
    33,
    40,
    47,
    48,
    49,
    63,
    64,
    65,
    80,
    96,
    113,
    128,
    129,
    200,
    257,
    300,
    900,
]
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    """Real text, cut at each length, each from a place of its own."""
    token_ids = AutoTokenizer.from_pretrained(smollm2).encode(TEXT)
    assert len(LENGTHS) == 32
    return [token_ids[37 * number : 37 * number + length] for number, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def expected(smollm2: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        outputs.append(generated[0, len(prompt) :].tolist())
    return outputs


def greedy(engine: LLMEngine, prompts: list[list[int]], finish, prefix: str) -> list[list[int]]:
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
        engine.add_request(f"{prefix}{number}", {"prompt_token_ids": prompt}, params)
    last = finish(engine)
    return [last[f"{prefix}{number}"].outputs[0].token_ids for number in range(len(prompts))]


def test_all_at_once(engine: LLMEngine, prompts, expected, finish) -> None:
    assert greedy(engine, prompts, finish, "all-") == expected


def test_one_at_a_time(engine: LLMEngine, prompts, expected, finish) -> None:
    for number, prompt in enumerate(prompts):
        assert greedy(engine, [prompt], finish, f"one-{number}-") == [expected[number]]


def test_in_small_chunks(smollm2: Path, prompts, expected, finish) -> None:
    small = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(smollm2), dtype="float32", max_model_len=1024, max_num_batched_tokens=64, max_num_seqs=7,
            kv_cache_memory_bytes=256 << 20, disable_log_stats=True,
        )
    )  # fmt: skip
    assert greedy(small, prompts, finish, "chunked-") == expected


def test_preempted(smollm2: Path, prompts, expected, finish) -> None:
    """Blocks for the longest request alone, so that the others are pushed out and computed again."""
    scarce = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(smollm2),
            dtype="float32",
            max_model_len=160,
            num_gpu_blocks_override=11,
            disable_log_stats=True,
        )
    )
    short = [number for number, prompt in enumerate(prompts) if len(prompt) < 40]
    outputs = greedy(scarce, [prompts[number] for number in short], finish, "scarce-")
    assert outputs == [expected[number] for number in short]
