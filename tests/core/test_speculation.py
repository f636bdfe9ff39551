"""Speculative decoding in the engine: the same output as without, whatever the drafts and the requests' parameters."""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from adapters import save_lora, save_prompt
from draft_checkpoints import save_eagle3, save_mtp, save_target
from engines import save_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from speculating_engines import NGRAM, contents, make, overlap_at_random, run, usual
from step_counts import Counts
from tiers import tiered
from transformers import LlamaForCausalLM

from engine_server import (
    LLMEngine,
    LoRARequest,
    PromptAdapterRequest,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)

WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 256}
ORDERS: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "preempted": {"num_gpu_blocks_override": 9, "max_model_len": 128},
    "whole prompts": WHOLE,
    "overlapped and preempted": {
        "num_gpu_blocks_override": 9, "max_model_len": 128, "async_scheduling": True,
    },
    "overlapped whole prompts": WHOLE | {"async_scheduling": True},
}  # fmt: skip
METHODS = ["ngram", "other model", "same model"]


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


# Draft heads have tests of their own.
@pytest.fixture(scope="module", params=tiered([*METHODS, "eagle3", "mtp"], "other model"))
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


# Each example is several requests for three engines.
@settings(max_examples=settings().max_examples // 5)
@given(st.lists(st.tuples(prompts, parameters), min_size=1, max_size=5))
def test_output_is_that_without_drafts(engines: Engines, finish, requests: list[Any]) -> None:
    plain, speculating, overlapped = (run(engine, finish, requests) for engine in engines)
    assert contents(plain) == contents(speculating) == contents(overlapped)


@pytest.mark.more
@settings(max_examples=settings().max_examples // 5)
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


@pytest.fixture(scope="module")
def expected(tiny_llama: Path, finish) -> list[list[Any]]:
    """Return the output without speculation."""
    return contents(run(make(tiny_llama, None), finish, usual(max_tokens=40, ignore_eos=True)))


@pytest.mark.parametrize(
    ("method", "order"),
    tiered(
        product(METHODS, ORDERS),
        ("same model", "overlapped and preempted"),
        more=[("ngram", "whole prompts"), ("other model", "eager")],
    ),
)
def test_output_is_the_same_in_every_order_of_steps(
    tiny_llama: Path,
    drafters: dict[str, dict[str, Any]],
    expected: list[list[Any]],
    finish,
    method: str,
    order: str,
) -> None:
    requests, options = usual(max_tokens=40, ignore_eos=True), ORDERS[order]
    counts = Counts()
    engine = make(tiny_llama, drafters[method], counts, **options)
    if "async_scheduling" in options:
        overlap_at_random(engine)
    assert contents(run(engine, finish, requests)) == expected
    assert counts.drafted > 0
    assert bool(counts.preemptions) == ("num_gpu_blocks_override" in options)
    # Again, from the prefix cache.
    assert contents(run(engine, finish, requests)) == expected
    assert counts.hits > 0 or "num_gpu_blocks_override" in options


@pytest.mark.more
@pytest.mark.parametrize("method", tiered(METHODS, "same model"))
def test_logprobs_are_bitwise_the_same_where_logits_are(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], finish, method: str
) -> None:
    requests = usual(logprobs=3)
    plain, speculating = (
        run(make(tiny_llama, drafting, dtype="bfloat16", batch_invariant=True), finish, requests)
        for drafting in (None, drafters[method])
    )
    for one, own in zip(plain, speculating, strict=True):
        assert one.outputs[0].token_ids == own.outputs[0].token_ids
        assert one.outputs[0].logprobs == own.outputs[0].logprobs


@pytest.mark.more
@pytest.mark.parametrize(
    ("method", "overlapped"), tiered(product(["ngram", "model"], [False, True]), ("model", True))
)
def test_grammars_and_stop_strings_hold_along_drafts(
    tiny_writer: Path, finish, method: str, overlapped: bool
) -> None:
    pattern = r"(ab|ba|c[0-9]{2}){9,12};"
    grammar = StructuredOutputsParams(regex=pattern)
    options = [
        {"structured_outputs": grammar, "seed": 1}, {"structured_outputs": grammar, "temperature": 0},
        {"structured_outputs": grammar, "seed": 2, "repetition_penalty": 1.3, "min_tokens": 12},
        {"stop": ["ab"], "seed": 3}, {"bad_words": ["b", "ca"], "temperature": 0},
    ]  # fmt: skip
    requests = [([*range(40, 50)], SamplingParams(**{"max_tokens": 48, **one})) for one in options]
    expected = run(make(tiny_writer, None, skip_tokenizer_init=False), finish, requests)
    drafting = NGRAM if method == "ngram" else {"model": str(tiny_writer), "num_speculative_tokens": 3}
    counts = Counts()
    engine = make(tiny_writer, drafting, counts, skip_tokenizer_init=False, async_scheduling=overlapped)
    found = run(engine, finish, requests)
    assert contents(found) == contents(expected)
    assert [one.outputs[0].text for one in found] == [one.outputs[0].text for one in expected]
    assert counts.accepted > 0


@pytest.mark.more
@pytest.mark.parametrize("method", tiered(METHODS, "same model"))
def test_requests_with_adapters_are_drafted_without(
    tiny_llama: Path, drafters: dict[str, dict[str, Any]], finish, tmp_path: Path, method: str
) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    lora = save_lora(model, tmp_path / "lora", 1, target_modules=["q_proj", "o_proj"])
    virtual = save_prompt(model, tmp_path / "virtual", 2, "PROMPT_TUNING", 3)
    adapters = {
        "lora_request": LoRARequest("lora", 1, str(lora)),
        "prompt_adapter_request": PromptAdapterRequest("virtual", 1, str(virtual), 3),
    }
    options = {"enable_lora": True, "max_loras": 1, "enable_prompt_adapter": True}
    engines = [make(tiny_llama, drafting, **options) for drafting in (None, drafters[method])]
    for names in (["lora_request"], ["prompt_adapter_request"], [*adapters]):
        used = {name: adapters[name] for name in names}
        plain, speculating = (run(engine, finish, usual(), **used) for engine in engines)
        assert contents(plain) == contents(speculating)


@pytest.mark.thorough
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
