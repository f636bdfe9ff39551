"""Equality with transformers: in float32, greedy output is the same for any batching."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_server import EngineArgs, LLMEngine, SamplingParams, StatLoggerBase

pytestmark = pytest.mark.thorough

NEW_TOKENS = 5
LENGTHS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 16, 17, 18),
    *(20, 22, 24, 28, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 129, 400),
)
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()

Prompts = dict[int, list[int]]  # by their length


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> Prompts:
    """Return excerpts of real text, a different one for each length."""
    token_ids = AutoTokenizer.from_pretrained(smollm2).encode(TEXT)
    return {length: token_ids[37 * number :][:length] for number, length in enumerate(LENGTHS)}


@pytest.fixture(scope="module")
def together(engine: LLMEngine, prompts: Prompts, finish) -> Prompts:
    """Add all prompts together, and return the output tokens of each."""
    return greedy(engine, prompts, LENGTHS, finish)


def greedy(
    engine: LLMEngine, prompts: Prompts, lengths: tuple[int, ...], finish, count: int = NEW_TOKENS
) -> Prompts:
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for length in lengths:
        engine.add_request(str(length), {"prompt_token_ids": prompts[length]}, params)
    last = finish(engine)
    return {length: last[str(length)].outputs[0].token_ids for length in lengths}


def test_batched_prompts_get_the_tokens_of_transformers(
    smollm2: Path, prompts: Prompts, together: Prompts
) -> None:
    """Compare with one forward over each prompt and its output: every token is the likeliest one at its position."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for length, output in together.items():
        assert len(output) == NEW_TOKENS
        with torch.inference_mode():
            forced = torch.tensor([prompts[length] + output[:-1]])
            logits = model(forced, logits_to_keep=NEW_TOKENS, use_cache=False).logits
        assert logits[0].argmax(-1).tolist() == output


def test_single_prompts_get_the_tokens_of_the_batch(
    engine: LLMEngine, prompts: Prompts, together: Prompts, finish
) -> None:
    engine.reset_prefix_cache()
    for length in LENGTHS:
        count = NEW_TOKENS if length in (1, 15, 16, 129) else 1
        assert greedy(engine, prompts, (length,), finish, count) == {length: together[length][:count]}


def test_chunked_prompts_get_the_tokens_of_the_batch(
    smollm2: Path, prompts: Prompts, together: Prompts, finish
) -> None:
    small = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(smollm2), dtype="float32", max_model_len=1024, max_num_batched_tokens=64, max_num_seqs=7,
            kv_cache_memory_bytes=256 << 20, disable_log_stats=True,
        )
    )  # fmt: skip
    assert greedy(small, prompts, LENGTHS, finish) == together


class Preemptions(StatLoggerBase):
    def __init__(self) -> None:
        self.count = 0

    def record(self, scheduler_stats, iteration_stats) -> None:
        self.count += scheduler_stats.num_preemptions if scheduler_stats else 0

    def log_engine_initialized(self) -> None:
        pass


def test_preempted_prompts_get_the_tokens_of_the_batch(
    smollm2: Path, prompts: Prompts, together: Prompts, finish
) -> None:
    """The cache has blocks for the longest request only, so the others are preempted and computed again."""
    preemptions = Preemptions()
    scarce = LLMEngine.from_engine_args(
        EngineArgs(model=str(smollm2), dtype="float32", max_model_len=160, num_gpu_blocks_override=11),
        stat_loggers={"preemptions": preemptions},
    )
    lengths = (12, 14, 15, 16, 28, 31, 32)
    assert greedy(scarce, prompts, lengths, finish) == {length: together[length] for length in lengths}
    assert preemptions.count
