"""The host's work for a decode step in the core process, with a scripted runner in place of a model.

    python -m benchmarks.host [--rows 1 64 256] [--rounds 7] [--steps 100] [--vllm PYTHON]

The steps are those of a GPU's loop: overlapped, with staged inputs and a sampler of kernels, which answer at once. Each
request has a context of about 1,000 tokens and default sampling parameters. torch has one thread: it would copy the
staged inputs, of 32,788 numbers, with a pool of threads, and measure how busy the machine is. Prints the median
microseconds of a step by part, and saves them under benchmarks/results/:
- schedule: the choice of the step's requests and their blocks;
- inputs: the batch as arrays, copied together to the device;
- sample: the sampler's parameters and masks, and the results that come back;
- update: the requests with their new tokens;
- outputs: everything else up to the encoded message to the front end.

vllm: an interpreter with vLLM, whose `Scheduler.schedule` and `update_from_output` are measured beside in turn.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch

from benchmarks.record import save
from engine_server.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from engine_server.core.engine_core import EngineCore
from engine_server.core.executor import PendingStep
from engine_server.requests.messages import AbortRequests, AddRequest, StepOutputs
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.token_bytes import pack

PARTS = ("schedule", "inputs", "sample", "update", "outputs")
CONTEXT, LONGEST, BLOCK_SIZE, BUDGET, VOCABULARY = 1000, 4096, 16, 8192, 32_000

# By part, the microseconds of a step.
Figures = dict[str, float]


class HostSteps:
    """An engine core with a scripted runner, whose steps are timed by part."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._core = EngineCore(core_config(rows), lambda name, seconds: None)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._round = 0
        scheduler, executor, grammars = self._core.scheduler, self._core.executor, self._core.grammars
        scheduler.schedule = self._timed("schedule", scheduler.schedule)
        executor.forward = self._timed("inputs", executor.forward)
        grammars.fill = self._timed("sample", grammars.fill)
        executor.head = self._timed_head(self._timed("sample", executor.head))
        scheduler.update = self._timed("update", scheduler.update)

    def measure(self, steps: int) -> Figures:
        """Return the median of each part over decode steps of requests that have just computed their prompts."""
        encoder = msgspec.msgpack.Encoder()
        names = [f"{self._round}-{index:032x}" for index in range(self._rows)]
        self._round += 1
        for name in names:
            draw = random.Random(name)
            prompt = [draw.randrange(VOCABULARY) for _ in range(CONTEXT)]
            self._core.handle(
                AddRequest([name], pack(prompt), SamplingParams(seed=1), LONGEST - CONTEXT, 0.0)
            )
        while len(self._outputs().steps) < self._rows:
            pass
        taken: dict[str, list[float]] = {part: [] for part in PARTS}
        for _ in range(steps):
            self._seconds.clear()
            started = time.perf_counter()
            message = encoder.encode(self._outputs())
            seconds = time.perf_counter() - started
            self._seconds["outputs"] = seconds - sum(self._seconds.values())
            assert len(message) > self._rows
            for part in PARTS:
                taken[part].append(1e6 * self._seconds[part])
        self._core.handle(AbortRequests(names))
        self._core.outputs()
        return {part: median(values) for part, values in taken.items()}

    def _outputs(self) -> StepOutputs:
        outputs = self._core.outputs()
        if any(step.finish_reason is not None for step in outputs.steps):
            raise RuntimeError("a request ended before its step was measured")
        return outputs

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            self._seconds[part] += time.perf_counter() - started
            return result

        return timed

    def _timed_head(self, head: Callable[..., PendingStep]) -> Callable[..., PendingStep]:
        def timed(*arguments: Any) -> PendingStep:
            pending = head(*arguments)
            pending.collect = self._timed("sample", pending.collect)
            return pending

        return timed


def core_config(rows: int) -> EngineConfig:
    """Return the settings of a core for a number of running requests."""
    return EngineConfig(
        ModelConfig(
            model="scripted", path="", tokenizer="", served_model_name=[], dtype="float32",
            max_model_len=LONGEST, vocab_size=VOCABULARY, eos_token_ids=[2], seed=0,
        ),
        CacheConfig(
            block_size=BLOCK_SIZE, gpu_memory_utilization=0.9, kv_cache_memory_bytes=None,
            num_gpu_blocks_override=(rows + 1) * LONGEST // BLOCK_SIZE,
        ),
        ParallelConfig(worker_cls="benchmarks.scripted_runner:ScriptedRunner"),
        SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=rows, enable_chunked_prefill=True),
        DeviceConfig(device="cpu"),
        LoadConfig(),
    )  # fmt: skip


@contextmanager
def vllm_side(python: Path) -> Iterator[Callable[[int, int], Figures]]:
    """A process with vLLM's scheduler, as a function of rows and steps."""
    script = Path(__file__).with_name("vllm_scheduler.py")
    command = [str(python), "-P", str(script), *map(str, (CONTEXT, LONGEST, BLOCK_SIZE, BUDGET))]
    environment = {**os.environ, "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_LOGGING_LEVEL": "ERROR"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as other:
        assert other.stdin is not None and other.stdout is not None
        requests, answers = other.stdin, other.stdout

        def measure(rows: int, steps: int) -> Figures:
            print(json.dumps({"rows": rows, "steps": steps}), file=requests, flush=True)
            figures: Figures = json.loads(answers.readline())
            return figures

        yield measure


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the host's work for a decode step.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=7, help="of which medians are taken (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of a round (%(default)s)")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="an interpreter that has vLLM")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, Callable[[int], Figures]] = {}
    cores = {rows: HostSteps(rows) for rows in flags.rows}
    gc.freeze()  # as the core's process does
    sides["fairlead"] = lambda rows: cores[rows].measure(flags.steps)
    with ExitStack() as stack:
        if flags.vllm is not None:
            measure = stack.enter_context(vllm_side(flags.vllm))
            sides["vllm"] = lambda rows: measure(rows, flags.steps)
        taken: dict[tuple[str, int], list[Figures]] = {}
        for _ in range(flags.rounds):
            for rows in flags.rows:
                for name, side in sides.items():
                    taken.setdefault((name, rows), []).append(side(rows))
    results = {
        f"{name} {rows}": {part: median(one[part] for one in rounds) for part in rounds[0]}
        for (name, rows), rounds in taken.items()
    }
    print(f"{'':14}" + "".join(f"{part:>10}" for part in (*PARTS, "all")) + "   us a step")
    for name, figures in results.items():
        columns = [figures.get(part) for part in PARTS]
        cells = [f"{'' if one is None else format(one, '.0f'):>10}" for one in columns]
        print(f"{name:14}" + "".join(cells) + f"{sum(figures.values()):10.0f}")
    print(f"saved {save('host', {'microseconds': results})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
