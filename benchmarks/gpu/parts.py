"""The parts of the benchmark, each in a process of its own: one that fails or hangs takes no other along.

    python -m benchmarks.gpu.parts PART '{"copy": TERABYTES_A_SECOND, "matmul": TFLOPS}'

runs one, which prints each row as JSON as soon as it is measured. The device's limits are given, so that all parts are
held to the same.
"""

import faulthandler
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.gpu.report import Row


class Part(NamedTuple):
    name: str
    seconds: int  # after which it is ended; all together stay under nine minutes
    what: str


PARTS = (
    Part("limits", 20, "the device's own: a copy, a product of bf16 matrices"),
    Part("kernels", 95, "alone, beside torch's"),
    Part("Qwen3-0.6B", 50, "the whole engine"),
    Part("Qwen3-0.6B beside", 40, "transformers' continuous batching"),
    Part("Llama-3.1-8B", 120, "the whole engine"),
    Part("Llama-3.1-8B beside", 60, "transformers' continuous batching"),
    Part("Qwen3-30B-A3B", 90, "the whole engine"),
    Part("switches", 60, "what each of the engine's is worth, for Qwen3-0.6B"),
)
SWITCHES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no overlap": {"async_scheduling": False},
    "float8 cache": {"kv_cache_dtype": "fp8"},
}
GOALS = {
    "Llama-3.1-8B": {
        "decode 1": {"% of bandwidth": 85.0},
        "decode 256": {"tok/s": 12_000.0},
        "prefill": {"% of matmul": 60.0},
        "busy 1": {"%": 95.0},
        "busy 256": {"%": 95.0},
    },
}


def rows(part: str, limits: dict[str, float]) -> Iterator[Row]:
    """What a part measures. It alone imports torch, which takes seconds that the caller of all parts is spared."""
    from benchmarks.gpu import attention, layers, load, peer
    from benchmarks.gpu.limits import TERA, Limits, measure

    most = Limits(**{name: TERA * limit for name, limit in limits.items()})
    match part.split():
        case ["limits"]:
            return measure()
        case ["kernels"]:
            return itertools.chain(layers.measure(most), attention.measure(most))
        case ["switches"]:
            return load.compare(most, "Qwen3-0.6B", SWITCHES)
        case [model, "beside"]:
            return peer.measure(model)
        case _:
            return load.measure(most, part, GOALS.get(part, {}))


def main() -> None:
    name, limits = sys.argv[1], json.loads(sys.argv[2])
    (part,) = (part for part in PARTS if part.name == name)
    faulthandler.dump_traceback_later(part.seconds - 5)  # where a part is that is late
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no row
    for row in rows(name, limits):
        print(json.dumps(row), file=output, flush=True)


if __name__ == "__main__":
    main()
