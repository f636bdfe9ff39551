"""Engines with and without speculation, and what they return."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from fake_runner import FakeRunner
from step_counts import Counts

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.core.scheduling.request import Request
from engine_server.core.speculation.cost_model import DraftAllocation

COMMON: dict[str, Any] = {
    "dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "max_num_batched_tokens": 24,
    "max_logprobs": 5,
}  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9] * 9, [11, 12], [5] * 20]


def draft_always(engine: LLMEngine) -> None:
    """Draft as if drafts cost nothing, so that the tests don't depend on the machine."""
    set_price_of_drafts(engine, 0.0)


def set_price_of_drafts(engine: LLMEngine, seconds: float) -> None:
    """Draft as if a step's first row took a second, and each further one so many."""
    scheduling, speculator = engine.config.scheduler_config, engine._core.speculator
    assert speculator is not None
    step_seconds = 1 + seconds * np.arange(-1.0, scheduling.max_num_rows)
    speculator._allocation = DraftAllocation(step_seconds, np.zeros(scheduling.max_num_seqs + 1))


def overlap_at_random(engine: LLMEngine) -> None:
    """Overlap about half of the steps that could have drafts, so that the order of steps changes all the time."""
    speculator, random = engine._core.speculator, Random(0)
    assert speculator is not None and engine._core.overlapped
    needs_results = speculator.needs_results

    def needs_some_results(running: Sequence[Request]) -> bool:
        return needs_results(running) and random.random() < 0.5

    speculator.needs_results = needs_some_results  # type: ignore[method-assign]


def usual(prompts: list[list[int]] = PROMPTS, **options: Any) -> list[tuple[list[int], SamplingParams]]:
    """Return a request for each prompt, every other one sampled."""
    return [
        (prompt, SamplingParams(**{"temperature": number % 2, "seed": number, "max_tokens": 24, **options}))
        for number, prompt in enumerate(prompts)
    ]


def make(
    model: Path,
    speculative_config: dict[str, Any] | None,
    counts: Counts | None = None,
    executor_class: type[FakeRunner] | None = None,
    **options: Any,
) -> LLMEngine:
    """Start an engine whose drafts cost nothing. executor_class: a fake in place of the models."""
    common = COMMON | {"model": str(model), "skip_tokenizer_init": True}
    args = EngineArgs(**common | {"speculative_config": speculative_config} | options)
    config = msgspec.structs.asdict(args.create_engine_config())
    loggers = {"counts": counts or Counts()}
    engine = LLMEngine(**config, executor_class=executor_class, log_stats=True, stat_loggers=loggers)
    if speculative_config is not None:
        draft_always(engine)
    return engine


def run(
    engine: LLMEngine, finish: Callable[..., Any], requests: list[Any], **options: Any
) -> list[RequestOutput]:
    """Return the last output of each request, given as a prompt and its parameters, in their order."""
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params.clone(), **options)
    last = finish(engine)
    engine._core.check_integrity()
    return [last[str(number)] for number in range(len(requests))]


def contents(outputs: list[RequestOutput]) -> list[list[Any]]:
    """Return what speculation must not change: tokens, reasons, and the tokens that log-probabilities name."""
    return [
        [
            (
                list(one.token_ids),
                one.finish_reason,
                one.stop_reason,
                one.logprobs and [*map(list, one.logprobs)],
            )
            for one in output.outputs
        ]
        for output in outputs
    ]
