"""A draft model in the engine: what it computes, the drafts that are accepted, and what it harms when it fails.

Most tests have a fake in place of both models, whose tokens depend on all that their caches hold.
"""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import save_llama
from fake_runner import FakeRunner
from speculating_engines import NGRAM, contents, make, run, usual
from step_counts import Counts
from tiers import tiered

from engine_server import LLMEngine, SamplingParams
from engine_server.core.scheduling.batch import Batch, num_tokens
from engine_server.core.speculation.cost_model import DraftAllocation


@pytest.fixture
def same_model(tiny_llama: Path) -> dict[str, Any]:
    """Return the settings of a draft model equal to the target."""
    return {"model": str(tiny_llama), "num_speculative_tokens": 3}


@pytest.mark.more
def test_draft_model_sleeps_and_wakes(tiny_llama: Path, same_model: dict[str, Any], finish) -> None:
    engine = make(tiny_llama, same_model)
    expected = run(engine, finish, usual())
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert contents(run(engine, finish, usual())) == contents(expected)


def num_steps(engine: LLMEngine, prompt: list[int], params: SamplingParams) -> int:
    engine.add_request("r", {"prompt_token_ids": prompt}, params)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    return steps


def test_repeated_text_takes_fewer_steps(tiny_llama: Path) -> None:
    """A bias makes the output periodic, so that drafts copied from it are right."""
    params = SamplingParams(temperature=0, max_tokens=40, logit_bias={9: 100.0})
    assert num_steps(make(tiny_llama, None, executor_class=FakeRunner), [3, 4], params) >= 40
    assert num_steps(make(tiny_llama, NGRAM, executor_class=FakeRunner), [3, 4], params) < 20


@pytest.mark.more
@pytest.mark.parametrize("temperature", tiered([0.0, 1.0], 1.0))
def test_drafts_of_the_model_itself_are_accepted_whole(tiny_llama: Path, temperature: float) -> None:
    counts = Counts()
    engine = make(tiny_llama, {"model": str(tiny_llama), "num_speculative_tokens": 4}, counts)
    params = SamplingParams(temperature=temperature, seed=3, top_p=0.9, max_tokens=40, ignore_eos=True)
    assert num_steps(engine, [3, 4, 5], params) < 15
    assert counts.drafted == counts.accepted > 0


def record_sizes(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of tokens of each later step of the draft model is appended."""
    sizes: list[int] = []
    compute = engine._core.executor.draft_logits

    def recording(batch: Batch, sources: None) -> torch.Tensor:
        sizes.append(num_tokens(batch))
        return compute(batch, sources)

    monkeypatch.setattr(engine._core.executor, "draft_logits", recording)
    return sizes


def test_cached_prompt_is_not_computed_again_by_the_draft_model(
    tiny_llama: Path, same_model: dict[str, Any], finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, params = Counts(), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    request = [*range(3, 43)], params
    engine = make(tiny_llama, same_model, counts, FakeRunner)
    sizes = record_sizes(engine, monkeypatch)

    run(engine, finish, [request])
    first, sizes[:] = [*sizes], []
    run(engine, finish, [request])

    assert first[:2] == [24, 18]  # the prompt and the tokens of two steps; a step has 24 at most
    assert sizes[0] == 41 - 32  # two blocks are cached
    assert counts.accepted == counts.drafted > 0


def test_prompt_that_was_cached_without_drafts_is_computed_by_the_draft_model(
    tiny_llama: Path, same_model: dict[str, Any], finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, prompt = Counts(), [*range(3, 43)]
    engine = make(tiny_llama, same_model, counts, FakeRunner)
    sizes = record_sizes(engine, monkeypatch)

    run(engine, finish, [(prompt, SamplingParams(temperature=0, max_tokens=1))])
    assert not sizes
    run(engine, finish, [(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))])

    assert counts.hits > 0
    assert sizes[:2] == [24, 18]
    assert counts.accepted == counts.drafted > 0


@pytest.mark.parametrize("num_blocks", [9, 64])
def test_drafts_are_accepted_whole_while_requests_share_and_reuse_blocks(
    tiny_llama: Path, same_model: dict[str, Any], num_blocks: int, finish
) -> None:
    counts = Counts()
    options = {"num_gpu_blocks_override": num_blocks, "max_model_len": 128}
    engine = make(tiny_llama, same_model, counts, FakeRunner, **options)
    prompts = [
        [*range(start, start + 20), *range(3, 3 + count)] for start in (3, 40, 70) for count in (9, 20)
    ]

    for _ in range(3):
        run(engine, finish, usual(prompts, ignore_eos=True))
        for prompt in prompts[::2]:
            run(engine, finish, usual([prompt], ignore_eos=True))

    assert counts.hits > 0
    assert bool(counts.preemptions) == (num_blocks == 9)
    assert counts.accepted == counts.drafted > 0


def test_drafts_as_slow_as_the_model_are_not_made(tiny_llama: Path, finish) -> None:
    """The measured steps of draft and target are equal, so no draft pays."""
    counts = Counts()
    engine = make(tiny_llama, {"model": str(tiny_llama)}, counts, FakeRunner)
    speculator = engine._core.speculator
    assert speculator is not None
    speculator._allocation = DraftAllocation(np.arange(100) + 10.0, np.arange(10) * 10.0)
    run(engine, finish, usual())
    assert counts.drafted <= 1  # a trial


@pytest.mark.parametrize("overlapped", [False, True])
def test_failed_draft_model_harms_no_request(
    tiny_llama: Path,
    same_model: dict[str, Any],
    overlapped: bool,
    finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run(make(tiny_llama, None, executor_class=FakeRunner), finish, usual())
    engine = make(tiny_llama, same_model, executor_class=FakeRunner, async_scheduling=overlapped)
    compute, calls = engine._core.executor.draft_logits, count()

    def fail_later(batch: Batch, sources: None) -> torch.Tensor:
        if next(calls) == 7:
            raise RuntimeError("no memory")
        return compute(batch, sources)

    monkeypatch.setattr(engine._core.executor, "draft_logits", fail_later)
    assert contents(run(engine, finish, usual())) == contents(expected)
    assert next(calls) == 8


def test_wrong_draft_models_are_refused(tiny_llama: Path, tiny_writer: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speculative_config has model '" + str(tmp_path / "nothing")):
        make(tiny_llama, {"model": str(tmp_path / "nothing")})
    with pytest.raises(
        ValueError, match=r"whose vocabulary has 300 tokens; that of .* has 128, and they must be equal"
    ):
        make(tiny_llama, {"model": str(tiny_writer)})


@pytest.mark.more
def test_cache_without_room_for_the_draft_model_is_refused(tiny_llama: Path) -> None:
    options = {
        "num_gpu_blocks_override": None,
        "max_model_len": 256,
        "kv_cache_memory_bytes": 256 * 2 * 2 * 2 * 8 * 4,
    }
    make(tiny_llama, None, **options)
    with pytest.raises(ValueError, match="needs 16 blocks of KV cache; there is room for 8"):
        make(tiny_llama, {"model": str(tiny_llama)}, **options)


def test_rope_that_changes_with_length_is_refused(tmp_path: Path) -> None:
    save_llama(
        tmp_path, vocab_size=128, num_hidden_layers=1, num_key_value_heads=2,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    )  # fmt: skip
    with pytest.raises(ValueError, match="the model's rope changes with a sequence's length"):
        make(tmp_path, NGRAM)
