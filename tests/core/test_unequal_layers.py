"""Models whose layers differ in heads or number by kind of attention, so that each kind has its own pool of blocks."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from adapter_references import random_model
from architectures import ARCHITECTURES
from speculating_engines import NGRAM, draft_always
from step_counts import Counts
from tiers import tiered
from transformers import PreTrainedModel

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.server.api.server_info import describe

# Greedy outputs of these cross windows and chunks of 8 tokens.
PROMPTS = [[5, 9, 17], [7, 8, 9] * 7, [2, 3, 5, 7, 11, 13]]
NEW_TOKENS = 20
BLOCK_SIZE, LONGEST = 4, 48

SLIDING, FULL = "sliding_attention", "full_attention"
# By name: settings with three layers of the one kind and one of the other, and layers that read those of others.
LAYERS: dict[str, dict[str, Any]] = {
    "gemma 3": {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "gemma 3n": {
        "num_hidden_layers": 6, "layer_types": [SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL],
        "activation_sparsity_pattern": [0.5, *[0.0] * 5],
    },
    "gemma 4, E": {"num_hidden_layers": 6, "layer_types": [SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL]},
    "gemma 4, A4B": {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "llama 4": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
}  # fmt: skip
UNEQUAL = {
    one.name: one._replace(settings=one.settings | LAYERS[one.name])
    for one in ARCHITECTURES
    if one.name in LAYERS
}
# Of the numbers in keys and values of a token, by the configs: kv heads times dimensions, layer by layer.
NUMBERS = {
    "gemma 3": 2 * (2 * 8) * 4,
    "gemma 3n": 2 * (2 * 8) * 4,
    "gemma 4, E": 2 * (2 * 8 * 3 + 2 * 16),
    "gemma 4, A4B": 2 * (2 * 8 * 3 + 1 * 16),
    "llama 4": 2 * (2 * 8) * 4,
}
by_name = pytest.mark.parametrize("name", tiered(UNEQUAL, "gemma 4, E"))
every_name = pytest.mark.parametrize("name", tiered(UNEQUAL, "gemma 4, E", more=UNEQUAL))


def start(folder: Path, counts: Counts, **options: Any) -> LLMEngine:
    settings: dict[str, Any] = {
        "num_gpu_blocks_override": 64, "max_model_len": LONGEST, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 16,
    }  # fmt: skip
    return LLMEngine.from_engine_args(
        EngineArgs(model=str(folder), dtype="float32", skip_tokenizer_init=True, **settings | options),
        stat_loggers={"counts": counts},
    )


def answers(engine: LLMEngine, finish, **more: list[list[int]]) -> list[list[int]]:
    """Return the greedy output for each prompt, all requested at once; more: fields of each request."""
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(PROMPTS):
        fields = {name: values[number] for name, values in more.items()}
        engine.add_request(str(number), {"prompt_token_ids": prompt, **fields}, greedy)
    last = finish(engine)
    engine.check_integrity()
    return [last[str(number)].outputs[0].token_ids for number in range(len(PROMPTS))]


def generated(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    given = torch.tensor([prompt])
    return model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW_TOKENS, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )[0, len(prompt) :].tolist()  # fmt: skip


class Reference(NamedTuple):
    """A model, the folder that holds it, and its greedy output for each prompt."""

    folder: Path
    model: PreTrainedModel
    outputs: list[list[int]]


@pytest.fixture(scope="module")
def refer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """Return a function that returns the reference of a name, which is computed once."""

    @cache
    def refer(name: str) -> Reference:
        folder = tmp_path_factory.mktemp("unequal")
        model = random_model(UNEQUAL[name], folder)
        return Reference(folder, model, [generated(model, prompt) for prompt in PROMPTS])

    return refer


@by_name
@pytest.mark.parametrize("overlapped", tiered([False, True], True, more=[False]))
def test_output_is_that_of_transformers(name: str, overlapped: bool, refer, finish) -> None:
    (folder, _, expected), counts = refer(name), Counts()
    engine = start(folder, counts, max_num_seqs=4, async_scheduling=overlapped)
    windows, whole = sorted(pool.num_blocks for pool in engine._core.scheduler.table.pools)
    assert windows < whole == 64
    assert answers(engine, finish) == expected  # batched, in chunks of 16 tokens
    assert counts.hits == 0
    assert answers(engine, finish) == expected  # from cached prefixes
    assert counts.hits > 0
    resumed = [tokens[: 5 * number] for number, tokens in enumerate(expected)]
    assert answers(engine, finish, resume_token_ids=resumed) == expected
    for number, prompt in enumerate(PROMPTS):
        assert engine.reset_prefix_cache()
        greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
        engine.add_request("alone", {"prompt_token_ids": prompt}, greedy)
        assert finish(engine)["alone"].outputs[0].token_ids == expected[number]


@by_name
@pytest.mark.parametrize("overlapped", tiered([False, True], False, more=[True]))
def test_preemption_does_not_change_the_output(name: str, overlapped: bool, refer, finish) -> None:
    (folder, _, expected), counts = refer(name), Counts()
    engine = start(folder, counts, num_gpu_blocks_override=LONGEST // BLOCK_SIZE, async_scheduling=overlapped)
    assert answers(engine, finish) == expected
    assert counts.preemptions > 0


@pytest.mark.more
@by_name
def test_log_probabilities_of_several_completions_are_those_of_transformers(name: str, refer, finish) -> None:
    (folder, model, _), prompt = refer(name), PROMPTS[1]
    params = SamplingParams(
        n=3, seed=5, temperature=1, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=0
    )
    engine = start(folder, Counts())
    engine.add_request("three", {"prompt_token_ids": prompt}, params)
    completions = finish(engine)["three"].outputs
    assert len({tuple(one.token_ids) for one in completions}) == 3
    for one in completions:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
        found = [entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-4)


@every_name
@pytest.mark.transformers
def test_server_info_shows_the_bytes_of_a_token_by_the_arithmetic_of_the_config(
    name: str, tmp_path: Path
) -> None:
    random_model(UNEQUAL[name], tmp_path)
    engine = start(tmp_path, Counts(), max_num_seqs=4, enforce_eager=True)
    config = engine.config
    cache = describe(config)["cache_config"]
    size = NUMBERS[name] * torch.float32.itemsize
    assert cache["bytes_per_token"] == size
    # Blocks for windows are so few that the whole cache takes less than as many tokens in all layers.
    memory = config.device_config.memory_bytes["kv_cache"]
    assert memory < cache["num_gpu_blocks"] * BLOCK_SIZE * size


@pytest.mark.thorough
# Not gemma 3n, whose sparse activations are refused.
@pytest.mark.parametrize("name", [name for name in UNEQUAL if name != "gemma 3n"])
def test_two_ranks_give_the_output_of_one(name: str, tmp_path: Path, finish) -> None:
    random_model(UNEQUAL[name], tmp_path)
    expected = answers(start(tmp_path, Counts()), finish)
    assert answers(start(tmp_path, Counts(), tensor_parallel_size=2, device="cpu"), finish) == expected


@pytest.mark.thorough
@by_name
def test_ngram_drafts_do_not_change_the_output(name: str, tmp_path: Path, finish) -> None:
    random_model(UNEQUAL[name], tmp_path)
    counts = Counts()
    expected = answers(start(tmp_path, Counts()), finish)
    engine = start(tmp_path, counts, speculative_config=NGRAM)
    draft_always(engine)
    assert answers(engine, finish) == expected
    assert counts.drafted > counts.accepted


@pytest.mark.thorough
@by_name
def test_drafts_of_a_model_do_not_change_the_output(name: str, tmp_path: Path, finish) -> None:
    """The draft model is the target itself: its cache has the blocks of the target's whole contexts."""
    random_model(UNEQUAL[name], tmp_path)
    counts = Counts()
    expected = answers(start(tmp_path, Counts()), finish)
    speculation = {"model": str(tmp_path), "num_speculative_tokens": 3}
    engine = start(tmp_path, counts, speculative_config=speculation)
    draft_always(engine)
    assert answers(engine, finish) == expected
    assert counts.accepted > 0
