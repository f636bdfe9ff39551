"""The whole engine: decode, prefill, a mixed load, the device's busy time and its largest kernels."""

import gzip
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.driving import Prompts, finish, prompts_of, start, step
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.report import Row
from benchmarks.gpu.shapes import SHAPES, Config, decode_bytes, prefill_operations, write
from benchmarks.gpu.switches import Switch
from engine_server import EngineArgs, LLMEngine

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}  # kinds of events in a trace
TOP = 8  # kernels that are named
SEEDS = itertools.count()  # no two prompts are the same
ROOM = 64  # tokens that the first sequences may be ahead of the last


class Sizes(NamedTuple):
    """The sizes of all measurements."""

    decode: tuple[int, ...] = (1, 8, 64, 256)  # sequences
    profiled: tuple[int, ...] = (1, 256)
    context: int = 1024
    settle: int = 8  # steps before any is timed
    steps: int = 32  # that are timed together
    repeats: int = 3
    traced: int = 16  # steps
    prefill: int = 8192  # tokens
    short: int = 128  # tokens of a prompt, for which the host's launches would take longer than the device
    shorts: int = 20  # that are timed
    requests: int = 256  # at once
    given: int = 512
    made: int = 256
    made_beside: int = 64  # where transformers runs the same, for which more would take too long


FULL = Sizes()


class Trace(NamedTuple):
    """The device's activity in a trace of torch.profiler."""

    busy: float  # seconds in which it did anything
    kernels: Counter[str]  # microseconds by name

    @classmethod
    def read(cls, file: Path) -> "Trace":
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        spans = [event for event in events if event.get("cat") in ON_DEVICE]
        kernels: Counter[str] = Counter()
        busy = end = 0.0
        for span in sorted(spans, key=lambda span: float(span["ts"])):
            kernels[span["name"]] += span["dur"]
            last = span["ts"] + span["dur"]
            busy += max(0.0, last - max(end, span["ts"]))
            end = max(end, last)
        return cls(busy / 1e6, kernels)


def random_prompts(engine: LLMEngine, count: int, length: int) -> Prompts:
    return prompts_of(count, length, engine.get_model_config().vocab_size, next(SEEDS))


def run(engine: LLMEngine, count: int, given: int, made: int) -> float:
    """Run a load and return the seconds from the first prompt to the last token."""
    prompts = random_prompts(engine, count, given)
    started = time.perf_counter()
    start(engine, prompts, made)
    tokens = finish(engine)
    taken = time.perf_counter() - started
    assert tokens == count * made, f"{tokens} tokens came of {count * made}"
    return taken


def settle(engine: LLMEngine, count: int, sizes: Sizes, **sampling: Any) -> None:
    """Start `count` sequences and step until all decode with contexts around `sizes.context`."""
    steps = sizes.steps * sizes.repeats
    start(engine, random_prompts(engine, count, sizes.context - steps // 2), 2 * steps + ROOM, **sampling)
    whole = 0
    while whole < sizes.settle:
        whole += step(engine) == count
        assert engine.has_unfinished_requests(), f"{count} sequences never ran together"


def leave(engine: LLMEngine, count: int) -> None:
    engine.abort_request(str(number) for number in range(count))


def step_seconds(engine: LLMEngine, count: int, sizes: Sizes, **sampling: Any) -> float:
    """Return the duration of a step of `count` sequences, the median of the repeats."""
    settle(engine, count, sizes, **sampling)
    taken = []
    for _ in range(sizes.repeats):
        started = time.perf_counter()
        tokens = sum(step(engine) for _ in range(sizes.steps))
        taken.append(time.perf_counter() - started)
        assert tokens == count * sizes.steps, f"{tokens} tokens came of {count * sizes.steps}"
    leave(engine, count)
    return median(taken) / sizes.steps


def trace(engine: LLMEngine, count: int, sizes: Sizes, folder: Path) -> Trace:
    """Trace steps of `count` sequences."""
    settle(engine, count, sizes)
    synchronize()  # so that just these steps are in it
    engine.start_profile()
    for _ in range(sizes.traced):
        step(engine)
    synchronize()
    engine.stop_profile()
    leave(engine, count)
    (written,) = folder.glob("*.json.gz")
    found = Trace.read(written)
    written.unlink()
    return found


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make(config: Config, folder: Path, sizes: Sizes, **flags: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=write(config, folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=max(sizes.prefill, 2 * sizes.context) + 1,
            max_num_batched_tokens=sizes.prefill,
            max_num_seqs=sizes.requests,
            torch_profiler_dir=str(folder),
            kernels="triton" if torch.cuda.is_available() else "auto",  # no figure is of plain torch on a GPU
            **flags,
        ),
        stat_loggers={},
    )


def measure(limits: Limits, model: str, sizes: Sizes = FULL, config: Config | None = None) -> Iterator[Row]:
    """Measure a model; `config` replaces its configuration in tests."""
    config = config or SHAPES[model]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        engine = make(config, folder, sizes)
        yield Row("start", {"s": time.perf_counter() - started})
        yield from figures(engine, config, folder, limits, sizes)


def figures(engine: LLMEngine, config: Config, folder: Path, limits: Limits, sizes: Sizes) -> Iterator[Row]:
    warm_up(engine, sizes)
    taken = {}
    for count in sizes.decode:
        taken[count] = step_seconds(engine, count, sizes)
        yield decode_row(f"decode {count}", count, taken[count], config, limits, sizes)
    yield short_row(engine, sizes)
    prefill = median(run(engine, 1, sizes.prefill, 1) for _ in range(sizes.repeats))
    share = prefill_operations(config, sizes.prefill) / prefill / limits.matmul
    yield Row("prefill", {"tok/s": sizes.prefill / prefill, "% of matmul": share * 100})
    for made in (sizes.made_beside, sizes.made):
        load = median(run(engine, sizes.requests, sizes.given, made) for _ in range(sizes.repeats))
        yield Row(f"load {sizes.given}/{made}", {"tok/s": sizes.requests * made / load})
    for count in sizes.profiled:
        seen = trace(engine, count, sizes, folder)
        busy = seen.busy / sizes.traced
        yield Row(f"busy {count}", {"%": busy / taken[count] * 100, "ms a step": busy * 1e3})
        whole = seen.kernels.total() / 100
        top = {f"% {name[:60]}": time / whole for name, time in seen.kernels.most_common(TOP)}
        yield Row(f"kernels {count}", top)


def warm_up(engine: LLMEngine, sizes: Sizes) -> None:
    """Compile the kernels by using each of them once."""
    run(engine, min(8, sizes.requests), sizes.given, sizes.settle)
    run(engine, 1, sizes.prefill, 1)


def decode_row(name: str, count: int, seconds: float, config: Config, limits: Limits, sizes: Sizes) -> Row:
    share = decode_bytes(config, count, sizes.context) / seconds / limits.copy
    return Row(name, {"tok/s": count / seconds, "ms a step": seconds * 1e3, "% of bandwidth": share * 100})


def short_row(engine: LLMEngine, sizes: Sizes) -> Row:
    seconds = median(run(engine, 1, sizes.short, 1) for _ in range(sizes.shorts))
    return Row(f"first of {sizes.short}", {"ms": seconds * 1e3})


def measure_switch(
    limits: Limits, model: str, switch: Switch, sizes: Sizes = FULL, config: Config | None = None
) -> Iterator[Row]:
    """Measure decode with a switch; shares of the bandwidth assume bfloat16."""
    config = config or SHAPES[model]
    with tempfile.TemporaryDirectory() as folder:
        engine = make(config, Path(folder), sizes, **switch.flags)
        warm_up(engine, sizes)
        for count in (min(sizes.decode), max(sizes.decode)):
            seconds = step_seconds(engine, count, sizes, **switch.sampling)
            yield decode_row(f"decode {count}", count, seconds, config, limits, sizes)
        yield short_row(engine, sizes)
