"""Engines with and without speculation, and what they return."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from step_counts import Counts

from engine_server import EngineArgs, LLMEngine, RequestOutput
from engine_server.core.speculation.cost_model import DraftAllocation

COMMON: dict[str, Any] = {
    "dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "max_num_batched_tokens": 24,
    "max_logprobs": 5,
}  # fmt: skip


def draft_always(engine: LLMEngine) -> None:
    """Draft as if drafts cost nothing, so that the tests don't depend on the machine."""
    scheduling, speculator = engine.config.scheduler_config, engine._core.speculator
    assert speculator is not None
    step_seconds, draft_seconds = np.ones(scheduling.max_num_rows + 1), np.zeros(scheduling.max_num_seqs + 1)
    speculator._allocation = DraftAllocation(step_seconds, draft_seconds)


def make(
    model: Path, speculative_config: dict[str, Any] | None, counts: Counts | None = None, **options: Any
) -> LLMEngine:
    usual = COMMON | {"model": str(model), "skip_tokenizer_init": True}
    args = EngineArgs(**usual | {"speculative_config": speculative_config} | options)
    engine = LLMEngine.from_engine_args(args, stat_loggers={"counts": counts or Counts()})
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
