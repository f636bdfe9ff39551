"""The matrix products of the CPU kernels beside oneDNN's, with the shapes of SmolLM2-135M.

    python -m benchmarks.products [--threads 1] [--rows 1 8 32 128] [--seconds 2]

Prints 10^9 multiply-adds a second, the most of many short repetitions, in which the sides take turns. Weights of a few
rows are read from memory or the last cache, since a model's layers are more than a core's own caches hold. First come
the most that a thread can multiply, and for each format its share of that for all threads.
"""

import argparse
import time

import torch

from benchmarks.multiply_limits import limits
from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT, INT4, INT8
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.native_integer import NativeIntegerFormat
from engine_server.modeling.formats.native_minifloat import NativeMinifloatFormat
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.levels import instruction_level

# Inputs and outputs: query, key and value; output; gate and up; down.
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
# Layers whose weights take turns.
LAYERS = 8
# The kinds of operands of the limits, by format; others multiply floats.
OPERANDS = {"Q4_1": "4 bits", "Q8_0": "8 bits", "int8": "8 bits"}


def formats(inputs: int, outputs: int) -> dict[str, WeightFormat]:
    """Return one random layer in each format that is compared."""
    dense = DenseFormat(torch.randn(outputs, inputs).bfloat16())
    found: dict[str, WeightFormat] = {
        "bfloat16": NativeFloatingFormat(dense),
        "float16": NativeFloatingFormat(DenseFormat(dense.weight.half())),
        "bfloat16, oneDNN": pack(dense),
        "float16, oneDNN": DenseFormat(dense.weight.half()),
    }
    for name, bits, group, with_minima in (
        ("Q4_1", 4, 32, True),
        ("Q8_0", 8, 32, False),
        ("int8", 8, inputs, False),
    ):
        codes = torch.randint(0, 256, (outputs, inputs * bits // 8), dtype=torch.uint8)
        scales, minima = torch.rand(2, outputs, inputs // group)
        form = Form(INT4 if bits == 4 else INT8, FLOAT, group)
        integers = GroupedFormat(form, codes, scales, torch.bfloat16, minima=minima if with_minima else None)
        found[name] = NativeIntegerFormat(integers)
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    for name, form in (("MXFP4", Form(E2M1, E8M0, 32)), ("NVFP4", Form(E2M1, E4M3, 16))):
        scales = torch.randint(100, 126, (outputs, inputs // form.group), dtype=torch.uint8)
        factors = torch.rand(outputs, 1) if form.scales is E4M3 else None
        found[name] = NativeMinifloatFormat(
            GroupedFormat(form, codes, scales, torch.bfloat16, factors=factors)
        )
    return found


def measure(inputs: int, outputs: int, rows: int, seconds: float) -> dict[str, float]:
    """Return 10^9 multiply-adds a second by format: the fastest product of each layer counts."""
    layers = [formats(inputs, outputs) for _ in range(LAYERS)]
    values = torch.randn(rows, inputs).bfloat16()
    halves = values.half()
    least = [dict.fromkeys(layer, float("inf")) for layer in layers]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name in layers[0]:
            for layer, fewest in zip(layers, least, strict=True):
                own = halves if name.startswith("float16") else values
                started = time.perf_counter()
                layer[name].apply(own)
                fewest[name] = min(fewest[name], time.perf_counter() - started)
    work = LAYERS * rows * inputs * outputs / 1e9
    return {name: work / sum(fewest[name] for fewest in least) for name in layers[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each shape and number of rows")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"instruction level {instruction_level()}, {args.threads} threads, torch {torch.__version__}")
    machine = limits()
    for kind, limit in machine.items():
        print(
            f"the most of {kind}: " + ", ".join(f"{rate:.1f} from {place}" for place, rate in limit.items())
        )
    for inputs, outputs in SHAPES:
        for rows in args.rows:
            rates = measure(inputs, outputs, rows, args.seconds)
            most = {
                name: args.threads * machine[OPERANDS.get(name, "float32")]["registers"] for name in rates
            }
            print(
                f"{inputs} to {outputs}, {rows} rows: "
                + ", ".join(f"{name} {rate:.1f} ({rate / most[name]:.0%})" for name, rate in rates.items())
            )


if __name__ == "__main__":
    main()
