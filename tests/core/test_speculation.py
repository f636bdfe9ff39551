"""Speculative decoding in the engine: the same output as without, whatever the drafts and the requests' parameters."""

from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from adapters import save_lora, save_prompt
from draft_checkpoints import save_eagle3, save_mtp, save_target
from engines import save_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from speculating_engines import contents, make, overlap_at_random, run
from step_counts import Counts
from transformers import LlamaForCausalLM

from engine_server import (
    LLMEngine,
    LoRARequest,
    PromptAdapterRequest,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from engine_server.core.scheduling.batch import Batch, num_tokens
from engine_server.core.speculation.cost_model import DraftAllocation

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 256}
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9] * 9, [11, 12], [5] * 20]


class Engines(NamedTuple):
    """An engine without speculation, one with it, and one with it whose steps also overlap."""

    plain: LLMEngine
    speculating: LLMEngine
    overlapped: LLMEngine


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the tiny llama's vocabulary, other weights and a shorter context."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("draft")
    save_llama(folder, vocab_size=128, num_hidden_layers=1, num_key_value_heads=4)
    return folder


@pytest.fixture(scope="module")
def drafters(tiny_llama: Path, other: Path) -> dict[str, dict[str, Any]]:
    return {
        "ngram": NGRAM,
        "other model": {"model": str(other), "num_speculative_tokens": 3},
        "same model": {"model": str(tiny_llama), "num_speculative_tokens": 3},
    }


@pytest.fixture(params=["ngram", "other model", "same model"])
def drafting(request: pytest.FixtureRequest, drafters: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return drafters[request.param]


@pytest.fixture(scope="module", params=["ngram", "other model", "same model", "eagle3", "mtp"])
def engines(
    request: pytest.FixtureRequest,
    tiny_llama: Path,
    drafters: dict[str, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Engines:
    if request.param in drafters:
        return make_engines(tiny_llama, drafters[request.param])
    target, settings = tmp_path_factory.mktemp("target"), {"method": request.param}
    if request.param == "mtp":
        save_mtp(target, "mimo")
    else:
        head = tmp_path_factory.mktemp("head")
        save_target(target)
        save_eagle3(head)
        settings["model"] = str(head)
    return make_engines(target, settings)


def make_engines(target: Path, speculative_config: dict[str, Any]) -> Engines:
    overlapped = make(target, speculative_config, async_scheduling=True)
    overlap_at_random(overlapped)
    return Engines(make(target, None), make(target, speculative_config), overlapped)


def usual(prompts: list[list[int]] = PROMPTS, **options: Any) -> list[tuple[list[int], SamplingParams]]:
    """Return a request for each prompt, every other one sampled."""
    return [
        (prompt, SamplingParams(**{"temperature": number % 2, "seed": number, "max_tokens": 24, **options}))
        for number, prompt in enumerate(prompts)
    ]


prompts = st.lists(st.integers(3, 12), min_size=1, max_size=40)
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 9),
    max_tokens=st.integers(1, 30),
    n=st.integers(1, 2),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([-1, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    min_tokens=st.sampled_from([0, 1]),
    logprobs=st.sampled_from([None, 2]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
    stop_token_ids=st.sampled_from([[], [7, 20]]),
    logit_bias=st.sampled_from([None, {9: 3.0}]),
    allowed_token_ids=st.sampled_from([None, list(range(2, 40))]),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(prompts, parameters), min_size=1, max_size=5))
def test_output_is_that_without_drafts(engines: Engines, finish, requests: list[Any]) -> None:
    plain, speculating, overlapped = (run(engine, finish, requests) for engine in engines)
    assert contents(plain) == contents(speculating) == contents(overlapped)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(prompts, parameters), min_size=2, max_size=4),
    st.lists(st.sampled_from(["step", "abort", "preempt", "sleep"]), max_size=20),
)
def test_overlapped_steps_with_drafts_survive_aborts_and_preemptions(
    engines: Engines, finish, requests: list[Any], plan: list[str]
) -> None:
    plain = run(engines.plain, finish, requests)
    engine = engines.overlapped
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params.clone())
    last: dict[str, RequestOutput] = {}
    for operation in plan:
        match operation:
            case "abort":
                engine.abort_request("0")
            case "preempt":
                engine.reset_prefix_cache(reset_running_requests=True)
            case "sleep":
                engine.sleep(1)
                engine.check_integrity()
                engine.wake_up()
        last |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    last |= finish(engine)
    for number, expected in enumerate(plain):
        if number > 0 or "abort" not in plan:
            assert contents([last[str(number)]]) == contents([expected])
    assert engine.debug_state().scheduler.num_used_blocks == 0


@pytest.mark.parametrize(
    "options",
    [
        {"enforce_eager": True}, {"num_gpu_blocks_override": 9, "max_model_len": 128}, WHOLE,
        {"num_gpu_blocks_override": 9, "max_model_len": 128, "async_scheduling": True},
        WHOLE | {"async_scheduling": True},
    ],
    ids=["eager", "preempted", "whole prompts", "overlapped and preempted", "overlapped whole prompts"],
)  # fmt: skip
def test_output_is_the_same_in_every_order_of_steps(
    tiny_llama: Path, drafting: dict[str, Any], finish, options: dict[str, Any]
) -> None:
    requests = usual(max_tokens=40, ignore_eos=True)
    counts = Counts()
    expected = run(make(tiny_llama, None), finish, requests)
    engine = make(tiny_llama, drafting, counts, **options)
    if "async_scheduling" in options:
        overlap_at_random(engine)
    assert contents(run(engine, finish, requests)) == contents(expected)
    assert counts.drafted > 0
    assert bool(counts.preemptions) == ("num_gpu_blocks_override" in options)
    # Again, from the prefix cache.
    assert contents(run(engine, finish, requests)) == contents(expected)
    assert counts.hits > 0 or "num_gpu_blocks_override" in options


def test_logprobs_are_bitwise_the_same_where_logits_are(
    tiny_llama: Path, drafting: dict[str, Any], finish
) -> None:
    requests = usual(logprobs=3)
    plain, speculating = (
        run(make(tiny_llama, method, dtype="bfloat16", batch_invariant=True), finish, requests)
        for method in (None, drafting)
    )
    for one, own in zip(plain, speculating, strict=True):
        assert one.outputs[0].token_ids == own.outputs[0].token_ids
        assert one.outputs[0].logprobs == own.outputs[0].logprobs


def test_grammars_and_stop_strings_hold_along_drafts(tiny_writer: Path, finish) -> None:
    pattern = r"(ab|ba|c[0-9]{2}){9,12};"
    grammar = StructuredOutputsParams(regex=pattern)
    options = [
        {"structured_outputs": grammar, "seed": 1}, {"structured_outputs": grammar, "temperature": 0},
        {"structured_outputs": grammar, "seed": 2, "repetition_penalty": 1.3, "min_tokens": 12},
        {"stop": ["ab"], "seed": 3}, {"bad_words": ["b", "ca"], "temperature": 0},
    ]  # fmt: skip
    requests = [([*range(40, 50)], SamplingParams(**{"max_tokens": 48, **one})) for one in options]
    expected = run(make(tiny_writer, None, skip_tokenizer_init=False), finish, requests)
    methods = NGRAM, {"model": str(tiny_writer), "num_speculative_tokens": 3}
    for drafting, overlapped in product(methods, (False, True)):
        counts = Counts()
        engine = make(tiny_writer, drafting, counts, skip_tokenizer_init=False, async_scheduling=overlapped)
        found = run(engine, finish, requests)
        assert contents(found) == contents(expected)
        assert [one.outputs[0].text for one in found] == [one.outputs[0].text for one in expected]
        assert counts.accepted > 0


def test_requests_with_adapters_are_drafted_without(
    tiny_llama: Path, drafting: dict[str, Any], finish, tmp_path: Path
) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    lora = save_lora(model, tmp_path / "lora", 1, target_modules=["q_proj", "o_proj"])
    virtual = save_prompt(model, tmp_path / "virtual", 2, "PROMPT_TUNING", 3)
    adapters = {
        "lora_request": LoRARequest("lora", 1, str(lora)),
        "prompt_adapter_request": PromptAdapterRequest("virtual", 1, str(virtual), 3),
    }
    options = {"enable_lora": True, "max_loras": 1, "enable_prompt_adapter": True}
    for names in (["lora_request"], ["prompt_adapter_request"], [*adapters]):
        used = {name: adapters[name] for name in names}
        plain, speculating = (
            run(make(tiny_llama, method, **options), finish, usual(), **used) for method in (None, drafting)
        )
        assert contents(plain) == contents(speculating)


def test_draft_model_sleeps_and_wakes(tiny_llama: Path, drafters: dict[str, dict[str, Any]], finish) -> None:
    engine = make(tiny_llama, drafters["same model"])
    expected = run(engine, finish, usual())
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert contents(run(engine, finish, usual())) == contents(expected)


@pytest.mark.parametrize("overlapped", [False, True])
def test_two_ranks_draft_together(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], overlapped: bool, finish
) -> None:
    requests = usual(temperature=0)
    expected = run(make(tiny_llama, None), finish, requests)
    counts, ranks = Counts(), {"tensor_parallel_size": 2, "device": "cpu"}
    engine = make(tiny_llama, drafters["same model"], counts, **ranks, async_scheduling=overlapped)
    if overlapped:
        overlap_at_random(engine)
    assert contents(run(engine, finish, requests)) == contents(expected)
    assert counts.accepted > 0


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
    assert num_steps(make(tiny_llama, None), [3, 4], params) >= 40
    assert num_steps(make(tiny_llama, NGRAM), [3, 4], params) < 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
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

    def recording(batch: Batch) -> torch.Tensor:
        sizes.append(num_tokens(batch))
        return compute(batch)

    monkeypatch.setattr(engine._core.executor, "draft_logits", recording)
    return sizes


def test_cached_prompt_is_not_computed_again_by_the_draft_model(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, params = Counts(), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    request = [*range(3, 43)], params
    engine = make(tiny_llama, drafters["same model"], counts)
    sizes = record_sizes(engine, monkeypatch)

    run(engine, finish, [request])
    first, sizes[:] = [*sizes], []
    run(engine, finish, [request])

    assert first[:2] == [24, 18]  # the prompt and the tokens of two steps; a step has 24 at most
    assert sizes[0] == 41 - 32  # two blocks are cached
    assert counts.accepted == counts.drafted > 0


def test_prompt_that_was_cached_without_drafts_is_computed_by_the_draft_model(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, prompt = Counts(), [*range(3, 43)]
    engine = make(tiny_llama, drafters["same model"], counts)
    sizes = record_sizes(engine, monkeypatch)

    run(engine, finish, [(prompt, SamplingParams(temperature=0, max_tokens=1))])
    assert not sizes
    run(engine, finish, [(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))])

    assert counts.hits > 0
    assert sizes[:2] == [24, 18]
    assert counts.accepted == counts.drafted > 0


@pytest.mark.parametrize("num_blocks", [9, 64])
def test_drafts_are_accepted_whole_while_requests_share_and_reuse_blocks(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], num_blocks: int, finish
) -> None:
    counts = Counts()
    options = {"num_gpu_blocks_override": num_blocks, "max_model_len": 128}
    engine = make(tiny_llama, drafters["same model"], counts, **options)
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
    engine = make(tiny_llama, {"model": str(tiny_llama)}, counts)
    speculator = engine._core.speculator
    assert speculator is not None
    speculator._allocation = DraftAllocation(np.arange(100) + 10.0, np.arange(10) * 10.0)
    run(engine, finish, usual())
    assert counts.drafted <= 1  # a trial


@pytest.mark.parametrize("overlapped", [False, True])
def test_failed_draft_model_harms_no_request(
    tiny_llama: Path,
    drafters: dict[str, dict[str, Any]],
    overlapped: bool,
    finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run(make(tiny_llama, None), finish, usual())
    engine = make(tiny_llama, drafters["same model"], async_scheduling=overlapped)
    compute, calls = engine._core.executor.draft_logits, count()

    def fail_later(batch: Batch) -> torch.Tensor:
        if next(calls) == 7:
            raise RuntimeError("no memory")
        return compute(batch)

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
