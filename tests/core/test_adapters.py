"""LoRA adapters in the engine: the output of PEFT's own model, whatever else is in the batch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from adapters import greedy, save_lora
from native_kernels import needs_kernels
from step_counts import Counts
from tiers import tiered
from transformers import LlamaForCausalLM

from engine_server import (
    EngineArgs,
    LLMEngine,
    LoRARequest,
    SamplingParams,
)
from engine_server.modeling.graphs import step_programs

PROMPTS = [[3, 4, 5, 6], [7, 8, 9] * 9, [11, 12]]
NEW_TOKENS = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all linear": {"target_modules": "all-linear", "r": 8},
    "embeddings": {
        "target_modules": ["embed_tokens", "lm_head", "o_proj"], "use_rslora": True, "alpha_pattern": {"o_proj": 3},
        "rank_pattern": {"1.self_attn.o_proj": 2},
    },
}  # fmt: skip
NAMES = [None, *SETTINGS]


class Tuned(NamedTuple):
    """A base model, its adapters, and PEFT's output for each prompt, by the names of the adapters; None: the base's."""

    base: Path
    adapters: dict[str, LoRARequest]
    expected: dict[str | None, list[list[int]]]


@pytest.fixture(scope="module")
def tuned(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("adapters")
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    adapters, expected = {}, {None: [greedy(model, None, prompt, NEW_TOKENS) for prompt in PROMPTS]}
    for number, (name, settings) in enumerate(SETTINGS.items(), 1):
        path = save_lora(model, folder / name, number, **settings)
        adapters[name] = LoRARequest(name, number, str(path))
        expected[name] = [greedy(model, path, prompt, NEW_TOKENS) for prompt in PROMPTS]
    return Tuned(tiny_llama, adapters, expected)


def start(tuned: Tuned, counts: Counts | None = None, **options: Any) -> LLMEngine:
    usual = {
        "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 8, "max_num_batched_tokens": 16, "max_num_seqs": 8,
        "num_gpu_blocks_override": 64,
    }  # fmt: skip
    args = EngineArgs(
        model=str(tuned.base),
        dtype="float32",
        skip_tokenizer_init=True,
        **{"enable_lora": True} | usual | options,
    )
    return LLMEngine.from_engine_args(args, stat_loggers={"counts": counts or Counts()})


def params(count: int = NEW_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)


def outputs(engine: LLMEngine, tuned: Tuned, finish: Callable[..., Any]) -> dict[str | None, list[list[int]]]:
    """Return the output of every prompt with every adapter, all requested at once."""
    for name in NAMES:
        for number, prompt in enumerate(PROMPTS):
            lora = tuned.adapters.get(name) if name else None
            engine.add_request(f"{name} {number}", {"prompt_token_ids": prompt}, params(), lora_request=lora)
    last = finish(engine)
    engine.check_integrity()
    return {
        name: [last[f"{name} {number}"].outputs[0].token_ids for number in range(len(PROMPTS))]
        for name in NAMES
    }


@pytest.mark.transformers
@pytest.mark.parametrize(
    "enforce_eager", tiered([False, True], False, ids=lambda eager: "eager" if eager else "captured")
)
def test_mixed_batches_give_pefts_output(tuned: Tuned, finish, enforce_eager: bool) -> None:
    """Of three adapters two have a slot at a time; prompts are computed in chunks."""
    counts = Counts()
    engine = start(tuned, counts, enforce_eager=enforce_eager)
    assert outputs(engine, tuned, finish) == tuned.expected
    assert bool(counts.replayed) is not enforce_eager
    hits = counts.hits
    assert outputs(engine, tuned, finish) == tuned.expected  # from the cache, which adapters don't share
    assert counts.hits > hits


@pytest.mark.more
@needs_kernels
def test_steps_without_adapters_have_the_program_of_an_engine_that_takes_none(
    tuned: Tuned, caplog: pytest.LogCaptureFixture
) -> None:
    def recorded(**options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level("INFO", logger=step_programs.__name__):
            start(tuned, **options)
        return [re.sub(r" in [0-9.]+ s", "", message) for message in caplog.messages]

    without = recorded(enable_lora=False)
    unused_states, unused_logits, used_states, used_logits = recorded()
    assert [unused_states, unused_logits] == without
    assert {used_states, used_logits}.isdisjoint(without)


@pytest.mark.more
def test_preempted_requests_go_on_with_their_adapter(tuned: Tuned, finish) -> None:
    counts = Counts()
    assert (
        outputs(
            start(tuned, counts, block_size=4, num_gpu_blocks_override=12, max_model_len=48), tuned, finish
        )
        == tuned.expected
    )
    assert counts.preemptions > 0


@pytest.mark.thorough
def test_two_ranks_give_pefts_output(tuned: Tuned, finish) -> None:
    engine = start(tuned, tensor_parallel_size=2, device="cpu")
    assert outputs(engine, tuned, finish) == tuned.expected


@pytest.mark.more
@pytest.mark.parametrize("quantization", tiered(["int8", "int4"], "int8"))
def test_quantised_weights_take_adapters(tuned: Tuned, finish, quantization: str) -> None:
    """The base's output differs from PEFT's; an adapter without effect gives the base's, and others change it."""
    engine = start(tuned, quantization=quantization, quantization_group_size=16)
    found = outputs(engine, tuned, finish)
    assert all(found[name] != found[None] for name in SETTINGS)


@pytest.mark.more
@pytest.mark.transformers
def test_adapters_survive_a_sleep(tuned: Tuned, finish) -> None:
    engine = start(tuned)
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert outputs(engine, tuned, finish) == tuned.expected
