"""Asynchronous engines of a tiny model, and what they report."""

import asyncio
from pathlib import Path

from waiting import PATIENCE

from engine_server import AsyncEngineArgs, AsyncLLMEngine, StatLoggerBase


class Watcher(StatLoggerBase):
    """Keeps the last state that the core reported, and the reasons of ended requests."""

    def __init__(self) -> None:
        self.latest = None
        self.finished: list[str] = []

    def record(self, scheduler_stats, iteration_stats) -> None:
        self.latest = scheduler_stats or self.latest
        self.finished += [request.reason for request in iteration_stats.finished]

    def log_engine_initialized(self) -> None:
        pass

    @property
    def idle(self) -> bool:
        state = self.latest
        return state is not None and (state.num_running, state.num_waiting, state.kv_cache_usage) == (0, 0, 0)


def make(folder: Path, hang_timeout: float = 300.0, **options) -> AsyncLLMEngine:
    arguments = AsyncEngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=64,
        max_num_batched_tokens=64, max_num_seqs=8, disable_log_stats=True, hang_timeout=hang_timeout,
        enable_prompt_adapter=True,
    )  # fmt: skip
    return AsyncLLMEngine.from_engine_args(arguments, **options)


def prompt(length: int) -> dict:
    return {"prompt_token_ids": [7] * length}


async def drain(stream) -> list:
    """Return the outputs of a stream that ends before the time limit of a hung test."""
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream]
