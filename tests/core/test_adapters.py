"""LoRA adapters in the engine: the output of PEFT's own model, whatever else is in the batch."""

import re
import shutil
from collections.abc import Callable
from itertools import count
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
    InvalidRequestError,
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


@needs_kernels
def test_steps_without_adapters_have_the_program_of_an_engine_that_takes_none(
    tuned: Tuned, caplog: pytest.LogCaptureFixture
) -> None:
    def recorded(**options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level("INFO", logger=step_programs.__name__):
            start(tuned, **options)
        return [re.sub(r" in [0-9.]+ s", "", message) for message in caplog.messages]

    (without,) = recorded(enable_lora=False)
    unused, used = recorded()
    assert unused == without != used


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


@pytest.mark.parametrize("quantization", tiered(["int8", "int4"], "int8"))
def test_quantised_weights_take_adapters(tuned: Tuned, finish, quantization: str) -> None:
    """The base's output differs from PEFT's; an adapter without effect gives the base's, and others change it."""
    engine = start(tuned, quantization=quantization, quantization_group_size=16)
    found = outputs(engine, tuned, finish)
    assert all(found[name] != found[None] for name in SETTINGS)


def test_adapters_survive_a_sleep(tuned: Tuned, finish) -> None:
    engine = start(tuned)
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert outputs(engine, tuned, finish) == tuned.expected


def test_one_adapter_in_memory_serves_requests_in_turn(tuned: Tuned, finish) -> None:
    assert outputs(start(tuned, max_loras=1, max_cpu_loras=1), tuned, finish) == tuned.expected


def test_adapters_are_added_listed_pinned_and_removed(tuned: Tuned) -> None:
    engine = start(tuned)
    first, second, third = tuned.adapters.values()
    assert engine.list_loras() == set()
    assert engine.add_lora(first) and engine.add_lora(second) and engine.add_lora(third)
    assert engine.list_loras() == {1, 2, 3}
    assert engine.pin_lora(1)
    with pytest.raises(RuntimeError, match="max_loras is 2 and 1 adapters are pinned; one slot stays"):
        engine.pin_lora(2)
    assert engine.remove_lora(2) and not engine.remove_lora(2)
    with pytest.raises(RuntimeError, match="no adapter 2 in memory"):
        engine.pin_lora(2)
    assert engine.list_loras() == {1, 3}
    assert engine.add_lora(LoRARequest("fourth", 4, second.lora_path))
    assert engine.add_lora(
        LoRARequest("fifth", 5, second.lora_path)
    )  # in place of the third, used before the fourth
    assert engine.list_loras() == {1, 4, 5}


def test_a_removed_adapter_serves_the_requests_that_have_it(tuned: Tuned, tmp_path: Path, finish) -> None:
    engine = start(tuned)
    path = shutil.copytree(tuned.adapters["attention"].lora_path, tmp_path / "adapter")
    engine.add_request(
        "old", {"prompt_token_ids": PROMPTS[0]}, params(), lora_request=LoRARequest("a", 7, str(path))
    )
    while not any(output.outputs[0].token_ids for output in engine.step()):
        pass
    assert engine.remove_lora(7)
    shutil.rmtree(path)
    shutil.copytree(tuned.adapters["all linear"].lora_path, path)
    engine.add_request(
        "new", {"prompt_token_ids": PROMPTS[0]}, params(), lora_request=LoRARequest("a", 8, str(path))
    )
    last = finish(engine)
    assert last["old"].outputs[0].token_ids == tuned.expected["attention"][0]
    assert last["new"].outputs[0].token_ids == tuned.expected["all linear"][0]


def test_an_adapter_that_cannot_be_loaded_ends_its_requests_alone(
    tuned: Tuned, tmp_path: Path, finish
) -> None:
    engine = start(tuned)
    good, missing = tuned.adapters["attention"], LoRARequest("missing", 9, str(tmp_path / "nowhere"))
    prompt = {"prompt_token_ids": PROMPTS[0]}
    engine.add_request("base", prompt, params())
    engine.add_request("missing", prompt, params(), lora_request=missing)
    engine.add_request("good", prompt, params(), lora_request=good)
    engine.add_request(
        "other", prompt, params(), lora_request=LoRARequest("x", good.lora_int_id, "/elsewhere")
    )
    last = finish(engine)
    engine.check_integrity()
    assert last["missing"].outputs[0].finish_reason == last["other"].outputs[0].finish_reason == "error"
    assert last["base"].outputs[0].token_ids == tuned.expected[None][0]
    assert last["good"].outputs[0].token_ids == tuned.expected["attention"][0]
    with pytest.raises(
        RuntimeError,
        match=r"add_lora: the adapter missing can't be loaded: .*adapter_config.json can't be read",
    ):
        engine.add_lora(missing)
    save_lora(
        LlamaForCausalLM.from_pretrained(tuned.base), Path(missing.lora_path), 1, **SETTINGS["attention"]
    )
    assert engine.add_lora(missing)


def test_aborted_requests_leave_their_adapters(tuned: Tuned, finish) -> None:
    engine = start(tuned, max_loras=1, max_cpu_loras=1)
    for number, lora in enumerate(tuned.adapters.values()):
        engine.add_request(str(number), {"prompt_token_ids": PROMPTS[0]}, params(50), lora_request=lora)
    while not engine.step():
        pass
    engine.abort_request(["0", "1"])
    last = finish(engine)
    assert last["2"].outputs[0].token_ids[:NEW_TOKENS] == tuned.expected["embeddings"][0]


def test_wrong_adapters_of_requests_are_refused(tuned: Tuned) -> None:
    engine = start(tuned)
    for lora, words in (
        ("adapter", "lora_request is 'adapter'; expected `LoRARequest`"),
        (LoRARequest("a", 0, "/a"), "lora_int_id is 0; expected `int` >= 1"),
        (LoRARequest("a", 1, ""), "lora_path is ''"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.add_request("wrong", {"prompt_token_ids": [3]}, params(), lora_request=lora)
    with pytest.raises(ValueError, match="max_cpu_loras is 1; it must be at least max_loras, 2"):
        start(tuned, max_cpu_loras=1)


def test_many_adapters_share_few_slots(tuned: Tuned, tmp_path: Path, finish) -> None:
    model = LlamaForCausalLM.from_pretrained(tuned.base)
    paths = [
        save_lora(model, tmp_path / str(number), number, target_modules=["q_proj"]) for number in range(30)
    ]
    engine = start(tuned, max_loras=4, max_cpu_loras=6, max_num_seqs=16)
    for turn in range(2):
        for number, path in enumerate(paths):
            lora = LoRARequest(str(number), number + 1, str(path))
            prompt = {"prompt_token_ids": PROMPTS[0]}
            engine.add_request(f"{turn} {number}", prompt, params(), lora_request=lora)
        engine.add_request(f"{turn} base", {"prompt_token_ids": PROMPTS[0]}, params())
    last = finish(engine)
    engine.check_integrity()
    found = {name: output.outputs[0].token_ids for name, output in last.items()}
    assert len(found) == 62 and len(engine.list_loras()) <= 6
    for number in (0, 13, 29):
        expected = greedy(model, paths[number], PROMPTS[0], NEW_TOKENS)
        assert found[f"0 {number}"] == found[f"1 {number}"] == expected
    assert found["1 base"] == tuned.expected[None][0]


def test_caller_waits_for_an_adapter_without_polling(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that polls would keep the interpreter from the thread that reads."""
    engine = start(tuned)
    operations, polls = engine._core.operations, count()
    finished = operations.finished
    monkeypatch.setattr(operations, "finished", lambda: (next(polls), finished())[1])
    assert engine.add_lora(tuned.adapters["attention"])
    assert next(polls) == 1
