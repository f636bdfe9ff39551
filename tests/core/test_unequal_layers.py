"""Models whose layers differ in heads, share keys and values, or attend in chunks: on two ranks, and with drafts."""

from pathlib import Path
from typing import Any

import pytest
from adapter_references import random_model
from architectures import ARCHITECTURES, Architecture
from speculating_engines import NGRAM, draft_always
from step_counts import Counts

from engine_server import EngineArgs, LLMEngine, SamplingParams

# Greedy outputs of these cross windows and chunks of 8 tokens.
PROMPTS = [[5, 9, 17], [7, 8, 9] * 7, [2, 3, 5, 7, 11, 13]]

by_architecture = pytest.mark.parametrize(
    "architecture",
    [one for one in ARCHITECTURES if one.model in ("Gemma4ForCausalLM", "Llama4ForCausalLM")],
    ids=lambda architecture: architecture.name,
)


def answers(folder: Path, finish, counts: Counts, **options: Any) -> list[list[int]]:
    """Return the greedy output for each prompt, all requested at once."""
    arguments = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=64, max_model_len=48,
        max_num_batched_tokens=16, **options,
    )  # fmt: skip
    engine = LLMEngine.from_engine_args(arguments, stat_loggers={"counts": counts})
    if "speculative_config" in options:
        draft_always(engine)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy)
    last = finish(engine)
    engine.check_integrity()
    return [last[str(number)].outputs[0].token_ids for number in range(len(PROMPTS))]


@pytest.mark.thorough
@by_architecture
def test_two_ranks_give_the_output_of_one(architecture: Architecture, tmp_path: Path, finish) -> None:
    random_model(architecture, tmp_path)
    expected = answers(tmp_path, finish, Counts())
    assert answers(tmp_path, finish, Counts(), tensor_parallel_size=2, device="cpu") == expected


@pytest.mark.thorough
@by_architecture
def test_ngram_drafts_do_not_change_the_output(architecture: Architecture, tmp_path: Path, finish) -> None:
    random_model(architecture, tmp_path)
    counts = Counts()
    expected = answers(tmp_path, finish, Counts())
    assert answers(tmp_path, finish, counts, speculative_config=NGRAM) == expected
    assert counts.drafted > counts.accepted
