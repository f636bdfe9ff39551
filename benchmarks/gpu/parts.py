"""The parts of the benchmark, each in a process of its own, so that one that fails or hangs does not affect the others.

    python -m benchmarks.gpu.parts PART SECONDS '{"copy": TERABYTES_A_SECOND, "matmul": TFLOPS}'

runs one, which prints each row as JSON once it is measured. The limits are arguments, so that all parts are
compared with the same.
"""

import faulthandler
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.gpu.report import Goal, Row
from benchmarks.gpu.switches import SWITCHES

SWITCH = "switch:"  # begins the names of the parts that measure one


class Part(NamedTuple):
    name: str
    # The time after which it is killed, plus the time that earlier parts left; all together are under ten minutes.
    seconds: int
    what: str


PARTS = (
    Part("limits", 60, "the device's own: a copy, a product of bf16 matrices"),
    Part("kernels", 85, "alone, beside torch's"),
    Part("Qwen3-0.6B", 50, "the whole engine"),
    Part("Qwen3-0.6B beside", 35, "transformers' continuous batching"),
    Part("Llama-3.1-8B", 115, "the whole engine"),
    Part("Llama-3.1-8B beside", 70, "transformers' continuous batching"),
    Part("Qwen3-30B-A3B", 85, "the whole engine"),
    *(Part(f"{SWITCH} {name}", 16, "decode of Qwen3-0.6B's shape") for name in SWITCHES),
)
GOALS = (
    Goal("Llama-3.1-8B", "decode 1", "% of bandwidth", 85),
    Goal("Llama-3.1-8B", "decode 256", "tok/s", 12_000),
    Goal("Llama-3.1-8B", "prefill", "% of matmul", 60),
    Goal("Llama-3.1-8B", "busy 1", "%", 95),
    Goal("Llama-3.1-8B", "busy 256", "%", 95),
)


def rows(part: str, limits: dict[str, float]) -> Iterator[Row]:
    """Measure a part. torch is imported here, so that the process that starts the parts doesn't wait for it."""
    from benchmarks.gpu import attention, layers, load, mixture, peer, quantised
    from benchmarks.gpu.limits import TERA, Limits, measure

    most = Limits(**{name: TERA * limit for name, limit in limits.items()})
    match part.split():
        case ["limits"]:
            return measure()
        case ["kernels"]:
            kinds = layers, quantised, mixture, attention
            return itertools.chain.from_iterable(kind.measure(most) for kind in kinds)
        case [prefix, *words] if prefix == SWITCH:
            return load.measure_switch(most, "Qwen3-0.6B", SWITCHES[" ".join(words)])
        case [model, "beside"]:
            return peer.measure(model)
        case _:
            return load.measure(most, part)


def main() -> None:
    part, seconds, limits = sys.argv[1:]
    faulthandler.dump_traceback_later(float(seconds) - 5)  # shows where a slow part is
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("engine_server").setLevel(logging.INFO)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not mix with the rows
    for row in rows(part, json.loads(limits)):
        print(json.dumps(row), file=output, flush=True)


if __name__ == "__main__":
    main()
