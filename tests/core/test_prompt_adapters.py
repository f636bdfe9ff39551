"""Prompt adapters in the engine: the output of PEFT's own model, whatever else is in the batch."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from adapters import greedy, save_lora, save_prompt
from safetensors.torch import load_file
from step_counts import Counts
from tiers import tiered
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM, PreTrainedModel

from engine_server import (
    EngineArgs,
    InvalidRequestError,
    LLMEngine,
    LoRARequest,
    PromptAdapterRequest,
    SamplingParams,
)
from engine_server.core.speculation.cost_model import DraftAllocation

PROMPTS = [[3, 4, 5, 6], [7, 8, 9] * 9, [11]]
NEW_TOKENS = 6
# More tokens than a step's budget, a multiple of a block, and fewer than a block.
ADAPTERS = {"long": ("PROMPT_TUNING", 21), "block": ("P_TUNING", 16), "short": ("PROMPT_TUNING", 3)}


class Variant(NamedTuple):
    """The names of a request's adapters."""

    prompt: str | None = None
    lora: str | None = None


VARIANTS = [
    Variant(),
    *map(Variant, ADAPTERS),
    Variant(None, "lora"),
    Variant("long", "lora"),
    Variant("short", "lora"),
]


class Tuned(NamedTuple):
    """A base model, its adapters, and PEFT's output for each prompt."""

    base: Path
    prompts: dict[str, PromptAdapterRequest]
    lora: LoRARequest
    expected: dict[Variant, list[list[int]]]


@pytest.fixture(scope="module")
def tuned(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("adapters")
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    prompts = {
        name: PromptAdapterRequest(
            name, number, str(save_prompt(model, folder / name, number, kind, count)), count
        )
        for number, (name, (kind, count)) in enumerate(ADAPTERS.items(), 1)
    }
    modules = ["embed_tokens", "q_proj", "down_proj", "lm_head"]
    lora = LoRARequest("lora", 1, str(save_lora(model, folder / "lora", 1, target_modules=modules)))
    expected = {}
    for variant in VARIANTS:
        lora_folder = Path(lora.lora_path) if variant.lora else None
        prompt_folder = Path(prompts[variant.prompt].path) if variant.prompt else None
        expected[variant] = [
            greedy(model, lora_folder, prompt, NEW_TOKENS, prompt_adapter=prompt_folder) for prompt in PROMPTS
        ]
    assert len({str(outputs) for outputs in expected.values()}) == len(VARIANTS)
    return Tuned(tiny_llama, prompts, lora, expected)


def start(tuned: Tuned, counts: Counts | None = None, **options: Any) -> LLMEngine:
    usual = {
        "enable_lora": True, "max_prompt_adapters": 3, "max_prompt_adapter_token": 32, "max_num_batched_tokens": 16,
        "max_num_seqs": 8, "num_gpu_blocks_override": 96, "skip_tokenizer_init": True, "enable_prompt_adapter": True,
    }  # fmt: skip
    args = EngineArgs(model=str(tuned.base), dtype="float32", **usual | options)
    return LLMEngine.from_engine_args(args, stat_loggers={"counts": counts or Counts()})


def params(count: int = NEW_TOKENS, **fields: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": count, "ignore_eos": True, "detokenize": False} | fields
    )


def adapters(tuned: Tuned, variant: Variant) -> dict[str, Any]:
    return {
        "lora_request": tuned.lora if variant.lora else None,
        "prompt_adapter_request": tuned.prompts[variant.prompt] if variant.prompt else None,
    }


def outputs(engine: LLMEngine, tuned: Tuned, finish: Callable[..., Any]) -> dict[Variant, list[list[int]]]:
    """Return the output of every prompt with every combination of adapters, all requested at once."""
    for variant in VARIANTS:
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(
                f"{variant} {number}", {"prompt_token_ids": prompt}, params(), **adapters(tuned, variant)
            )
    last = finish(engine)
    engine.check_integrity()
    for variant in VARIANTS:
        for number, prompt in enumerate(PROMPTS):
            assert last[f"{variant} {number}"].prompt_token_ids == prompt
    return {
        variant: [last[f"{variant} {number}"].outputs[0].token_ids for number in range(len(PROMPTS))]
        for variant in VARIANTS
    }


@pytest.mark.transformers
@pytest.mark.parametrize(
    "enforce_eager", tiered([False, True], False, ids=lambda eager: "eager" if eager else "captured")
)
def test_mixed_batches_give_pefts_output(tuned: Tuned, finish, enforce_eager: bool) -> None:
    """Virtual tokens and prompts are computed in chunks of at most 16 tokens."""
    counts = Counts()
    engine = start(tuned, counts, enforce_eager=enforce_eager)
    assert outputs(engine, tuned, finish) == tuned.expected
    assert bool(counts.replayed) is not enforce_eager
    hits = counts.hits
    assert outputs(engine, tuned, finish) == tuned.expected  # from the cache, which adapters don't share
    assert counts.hits > hits


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [1, 64], ids=["a token", "everything"])
def test_output_is_independent_of_chunks(tuned: Tuned, finish, budget: int) -> None:
    assert outputs(start(tuned, max_num_batched_tokens=budget), tuned, finish) == tuned.expected


@pytest.mark.more
def test_preempted_requests_go_on_with_their_adapter(tuned: Tuned, finish) -> None:
    counts = Counts()
    engine = start(tuned, counts, block_size=4, num_gpu_blocks_override=20, max_model_len=80)
    assert outputs(engine, tuned, finish) == tuned.expected
    assert counts.preemptions > 0


@pytest.mark.thorough
def test_two_ranks_give_pefts_output(tuned: Tuned, finish) -> None:
    assert outputs(start(tuned, tensor_parallel_size=2, device="cpu"), tuned, finish) == tuned.expected


@pytest.mark.more
def test_overlapped_steps_give_pefts_output(tuned: Tuned, finish) -> None:
    assert outputs(start(tuned, async_scheduling=True), tuned, finish) == tuned.expected


@pytest.mark.more
def test_adapters_survive_a_sleep(tuned: Tuned, finish) -> None:
    engine = start(tuned)
    for level in (1, 2):
        engine.sleep(level)
        assert engine.add_prompt_adapter(tuned.prompts["long"])
        engine.wake_up()
        assert outputs(engine, tuned, finish) == tuned.expected


@pytest.mark.more
def test_one_adapter_in_memory_serves_requests_in_turn(tuned: Tuned, finish) -> None:
    engine = start(tuned, max_prompt_adapters=1)
    assert outputs(engine, tuned, finish) == tuned.expected
    assert len(engine.list_prompt_adapters()) == 1


def one(
    engine: LLMEngine,
    finish: Callable[..., Any],
    prompt: list[int] | torch.Tensor,
    sampling: SamplingParams,
    **named: Any,
) -> Any:
    kind = "prompt_token_ids" if isinstance(prompt, list) else "prompt_embeds"
    engine.add_request("one", {kind: prompt}, sampling, **named)
    return finish(engine)["one"]


class Operations(TorchDispatchMode):
    """Numbers of torch's operations, by their names and the shapes of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(value.shape) for value in args if isinstance(value, torch.Tensor)]
        self.counts[f"{func} {shapes}"] += 1
        return func(*args, **kwargs or {})


def test_prompt_adapters_that_no_request_names_add_no_operation_to_steps(tuned: Tuned, finish) -> None:
    found = {}
    for enabled in (True, False):
        engine = start(tuned, enable_prompt_adapter=enabled, enforce_eager=True)
        with Operations() as operations:
            one(engine, finish, PROMPTS[1], params())
        found[enabled] = operations.counts
    assert found[True] == found[False] and found[True].total() > 100


def test_adapter_is_cached_as_a_prefix_under_its_content(tuned: Tuned, tmp_path: Path, finish) -> None:
    counts = Counts()
    engine = start(tuned, counts, block_size=4, enable_prompt_embeds=True)
    adapter = tuned.prompts["block"]
    copied = PromptAdapterRequest("copy", 9, str(shutil.copytree(adapter.path, tmp_path / "copy")), 16)

    def cached(prompt: list[int] | torch.Tensor, **named: Any) -> tuple[int, int]:
        """Return the cached tokens of the prompt, and those with the virtual ones."""
        before = counts.hits
        return one(engine, finish, prompt, params(), **named).num_cached_tokens, counts.hits - before

    prompt = [3, 4, 5, 6, 7]
    assert cached(prompt, prompt_adapter_request=adapter) == (0, 0)
    assert cached(prompt, prompt_adapter_request=adapter) == (4, 20)
    assert cached(prompt, prompt_adapter_request=copied) == (4, 20)
    assert cached([9, 9], prompt_adapter_request=adapter) == (0, 16)
    assert cached(torch.ones(5, 32), prompt_adapter_request=adapter) == (0, 16)
    assert cached(torch.ones(5, 32), prompt_adapter_request=adapter) == (4, 20)
    assert cached(torch.ones(5, 32)) == (0, 0)
    assert cached(prompt) == (0, 0)
    assert cached(prompt, prompt_adapter_request=adapter, lora_request=tuned.lora) == (0, 0)
    assert cached(prompt, prompt_adapter_request=tuned.prompts["long"]) == (0, 0)


@pytest.mark.more
@pytest.mark.parametrize("budget", tiered([5, 64], 5))
def test_logprobs_are_those_of_the_prompt_after_the_virtual_tokens(tuned: Tuned, finish, budget: int) -> None:
    engine = start(tuned, max_num_batched_tokens=budget)
    model = LlamaForCausalLM.from_pretrained(tuned.base)
    for name, adapter in tuned.prompts.items():
        embeddings = prompt_embeddings(model, adapter)
        prompt = PROMPTS[1]
        found = one(
            engine, finish, prompt, params(prompt_logprobs=0, logprobs=0), prompt_adapter_request=adapter
        )
        output = found.outputs[0]
        whole = [*prompt, *output.token_ids]
        embeds = torch.cat([embeddings, model.get_input_embeddings()(torch.tensor(whole))])
        with torch.inference_mode():
            logprobs = (
                model(inputs_embeds=embeds.unsqueeze(0)).logits[0].log_softmax(-1)[len(embeddings) - 1 :]
            )
        expected = [float(logprobs[place, token]) for place, token in enumerate(whole)]
        assert found.prompt_logprobs[0] is None and len(found.prompt_logprobs) == len(prompt), name
        reported = [
            entry[token].logprob for token, entry in zip(prompt[1:], found.prompt_logprobs[1:], strict=True)
        ]
        reported += [
            entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)
        ]
        assert reported == pytest.approx(expected[1:], abs=1e-4)


def prompt_embeddings(model: PreTrainedModel, adapter: PromptAdapterRequest) -> torch.Tensor:
    return load_file(Path(adapter.path) / "adapter_model.safetensors")["prompt_embeddings"]


def test_penalties_and_processors_take_no_virtual_tokens(tuned: Tuned, finish) -> None:
    """The repetition penalty lowers the logits of the prompt's tokens alone."""
    processor = f"{__name__}:record"
    engine = start(tuned, logits_processors=[processor], max_logprobs=-1, logprobs_mode="processed_logits")
    named = {"prompt_adapter_request": tuned.prompts["long"]}
    seen.clear()
    plain = one(engine, finish, [5, 6], params(logprobs=-1, logits_processors=[processor]), **named).outputs[
        0
    ]
    assert seen == [[5, 6, *plain.token_ids[:count]] for count in range(NEW_TOKENS)]
    penalised = one(engine, finish, [5, 6], params(1, logprobs=-1, repetition_penalty=2.0), **named).outputs[
        0
    ]
    before, after = plain.logprobs[0], penalised.logprobs[0]
    assert len(before) > 100
    changed = {token for token, entry in after.items() if entry.logprob != before[token].logprob}
    assert changed == {5, 6}


seen: list[list[int]] = []


def record(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Record the tokens that a processor is given."""
    seen.append(token_ids)
    return logits


def test_seeded_choices_and_resumed_requests_go_on(tuned: Tuned, finish) -> None:
    engine = start(tuned)
    named = {"prompt_adapter_request": tuned.prompts["short"]}
    sampling = params(temperature=1, seed=5, n=3, repetition_penalty=1.3)
    choices = [choice.token_ids for choice in one(engine, finish, PROMPTS[0], sampling, **named).outputs]
    assert len(set(map(tuple, choices))) == 3
    resumed = {"prompt_token_ids": PROMPTS[0], "resume_token_ids": choices[0][:2]}
    engine.add_request("resumed", resumed, params(temperature=1, seed=5, repetition_penalty=1.3), **named)
    assert finish(engine)["resumed"].outputs[0].token_ids == choices[0]


@pytest.mark.more
def test_prompts_of_embeddings_take_adapters(tuned: Tuned, finish) -> None:
    engine = start(tuned, enable_prompt_embeds=True)
    variants = [variant for variant in VARIANTS if not variant.lora]  # which changes embeddings of tokens
    model = LlamaForCausalLM.from_pretrained(tuned.base)
    for number, prompt in enumerate(PROMPTS):
        embeds = model.get_input_embeddings()(torch.tensor(prompt))
        for variant in variants:
            engine.add_request(
                f"{variant} {number}", {"prompt_embeds": embeds}, params(), **adapters(tuned, variant)
            )
    last = finish(engine)
    for variant in variants:
        found = [last[f"{variant} {number}"].outputs[0].token_ids for number in range(len(PROMPTS))]
        assert found == tuned.expected[variant]


def test_virtual_tokens_count_against_the_context(tuned: Tuned, finish) -> None:
    engine = start(tuned, max_model_len=32)
    named = {"prompt_adapter_request": tuned.prompts["long"]}
    output = one(engine, finish, [3] * 8, params(None), **named).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (3, "length")
    words = "length is 32 tokens; the prompt has 11 tokens, after 21 virtual tokens of its adapter, and at least one"
    with pytest.raises(InvalidRequestError, match=words):
        engine.add_request("long", {"prompt_token_ids": [3] * 11}, params(), **named)
    with pytest.raises(
        InvalidRequestError, match=r"tokens is 31; with a token .* must fit the context of 32"
    ):
        engine.add_prompt_adapter(PromptAdapterRequest("whole", 9, "/a", 31))
    kept = one(engine, finish, [3] * 40, params(None, truncate_prompt_tokens=-1), **named)
    assert (len(kept.prompt_token_ids), len(kept.outputs[0].token_ids)) == (10, 1)


def test_adapters_are_added_listed_and_removed(tuned: Tuned) -> None:
    engine = start(tuned, max_prompt_adapters=2)
    first, second, third = tuned.prompts.values()
    assert engine.list_prompt_adapters() == set()
    assert engine.add_prompt_adapter(first) and engine.add_prompt_adapter(second)
    assert engine.list_prompt_adapters() == {1, 2} and engine.list_loras() == set()
    assert engine.add_prompt_adapter(third)
    assert engine.list_prompt_adapters() == {2, 3}
    assert engine.remove_prompt_adapter(2) and not engine.remove_prompt_adapter(2)
    assert engine.list_prompt_adapters() == {3}


def test_an_adapter_that_cannot_be_loaded_ends_its_requests_alone(
    tuned: Tuned, tmp_path: Path, finish
) -> None:
    engine = start(tuned)
    good, prompt = tuned.prompts["long"], {"prompt_token_ids": PROMPTS[0]}
    bad = {
        "missing": (
            PromptAdapterRequest("missing", 9, str(tmp_path / "nowhere"), 4),
            "adapter_config.json can't be read",
        ),
        "count": (
            PromptAdapterRequest("count", 10, good.path, 4),
            "21 virtual tokens, and the request says 4",
        ),
        "kind": (PromptAdapterRequest("kind", 11, tuned.lora.lora_path, 4), "peft_type is 'LORA'"),
        "other": (
            PromptAdapterRequest("other", 1, good.path, 20),
            "with 21 virtual tokens; another needs another id",
        ),
    }
    engine.add_request("base", prompt, params())
    engine.add_request("good", prompt, params(), prompt_adapter_request=good)
    for name, (adapter, _) in bad.items():
        engine.add_request(name, prompt, params(), prompt_adapter_request=adapter)
    wrong_lora = LoRARequest("prompt", 5, good.path)
    engine.add_request("lora", prompt, params(), prompt_adapter_request=good, lora_request=wrong_lora)
    last = finish(engine)
    engine.check_integrity()
    for name, (_, words) in bad.items():
        assert last[name].outputs[0].finish_reason == "error" and words in last[name].outputs[0].stop_reason
    assert "LORA is supported, and PROMPT_TUNING" in last["lora"].outputs[0].stop_reason
    assert last["base"].outputs[0].token_ids == tuned.expected[Variant()][0]
    assert last["good"].outputs[0].token_ids == tuned.expected[Variant("long")][0]
    with pytest.raises(RuntimeError, match="add_prompt_adapter: the adapter missing can't be loaded"):
        engine.add_prompt_adapter(bad["missing"][0])


def test_wrong_adapters_of_requests_are_refused(tuned: Tuned) -> None:
    engine = start(tuned)
    for adapter, words in (
        ("adapter", "prompt_adapter_request is 'adapter'; expected `PromptAdapterRequest`"),
        (PromptAdapterRequest("a", 0, "/a", 4), "prompt_adapter_id is 0; expected `int` >= 1"),
        (PromptAdapterRequest("a", 1, "", 4), "prompt_adapter_local_path is ''"),
        (PromptAdapterRequest("a", 1, "/a", 0), "prompt_adapter_num_virtual_tokens is 0"),
        (
            PromptAdapterRequest("a", 1, "/a", 33),
            "tokens is 33; max_prompt_adapter_token of the engine is 32",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.add_request("wrong", {"prompt_token_ids": [3]}, params(), prompt_adapter_request=adapter)


@pytest.mark.more
def test_a_started_request_goes_on_while_an_earlier_one_waits_for_its_adapters(tuned: Tuned, finish) -> None:
    """Memory holds one adapter of each kind, which the preempted request needs to its end."""
    engine = start(tuned, max_prompt_adapters=1, scheduling_policy="priority")
    first, second = Variant("long", "lora"), Variant("short", "lora")
    prompt = {"prompt_token_ids": PROMPTS[0]}
    engine.add_request("started", prompt, params(), **adapters(tuned, first), priority=1)
    while not engine.debug_state().scheduler.running:
        engine.step()
    engine.add_request("urgent", prompt, params(), **adapters(tuned, second), priority=0)
    engine.sleep(1)
    engine.wake_up()
    last = finish(engine)
    assert last["started"].outputs[0].token_ids == tuned.expected[first][0]
    assert last["urgent"].outputs[0].token_ids == tuned.expected[second][0]


@pytest.mark.more
@pytest.mark.parametrize("drafting", tiered(["ngram", "model"], "ngram"))
def test_speculation_changes_no_output(tuned: Tuned, finish, drafting: str) -> None:
    """Drafts are verified behind virtual tokens; a draft model, which has no such tokens, drafts for other requests."""
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    model = {"model": str(tuned.base), "num_speculative_tokens": 3}
    engine = start(tuned, speculative_config=ngram if drafting == "ngram" else model)
    scheduling, speculator = engine.config.scheduler_config, engine._core.speculator
    assert speculator is not None
    step_seconds, draft_seconds = np.ones(scheduling.max_num_rows + 1), np.zeros(scheduling.max_num_seqs + 1)
    speculator._allocation = DraftAllocation(step_seconds, draft_seconds)  # as if drafts cost nothing
    assert outputs(engine, tuned, finish) == tuned.expected
    assert outputs(engine, tuned, finish) == tuned.expected
