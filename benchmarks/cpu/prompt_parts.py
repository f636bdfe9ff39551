"""What a prompt costs on a CPU, by parts, beside the most multiply-adds of the machine.

    python -m benchmarks.cpu.prompt_parts MODEL [--tokens 128 512 2040 8000] [--threads 1] [--rounds 5]

The operations of the recorded steps run one by one, each timed. Times are medians of prompts' totals, in seconds of a
CPU, which other processes change little. Behind products and attention is the share of the limit: of the most
multiply-adds a second of a thread, from registers. Products quantise their values first, which is timed by calls
without outputs.
"""

import argparse
import ctypes
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.multiply_limits import limits
from benchmarks.record import save
from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.modeling.native.library import SIGNATURES, kernels

PRODUCTS = {"multiply_integer", "multiply_floating", "multiply_minifloat"}
PARTS = {
    "attention": "attention",
    "write_cache": "cache writes",
    **dict.fromkeys(("rms_norm", "layer_norm", "silu_and_mul", "gelu_tanh_and_mul", "activate", "rotate"),
                    "norms, activations, positions"),
}  # fmt: skip
# Places of rows, inputs and outputs among the integers of a product's arguments.
SIZES = {"multiply_integer": (8, 9, 10), "multiply_floating": (6, 7, 8), "multiply_minifloat": (7, 8, 9)}
# The place of the bits of a code in multiply_integer's; those of the sequences, of their number and of heads, the sizes
# of keys and of values in attention's.
BITS, SEQUENCES, HEADS, DIMS = 12, 12, 14, (16, 17)


class Operation(ctypes.Structure):
    """See native/program.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("function", "first", "integers", "floats")]


class Argument(ctypes.Structure):
    """See native/program.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("base", "constant", "slope")]


class Timed:
    """Runs programs one operation at a time and adds up the seconds and the multiply-adds of each part."""

    def __init__(self, run_program: Callable[..., None], vocabulary: int) -> None:
        self._run, self._vocabulary = run_program, vocabulary
        self._names = {getattr(kernels(), name).address: name for name in SIGNATURES}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.products = Counter[str]()
        # The seconds that the measurement itself takes.
        self.own_seconds = 0.0

    def __call__(self, operations: int, count: int, arguments: int, bases: int, rows: int) -> None:
        begun, before = time.process_time(), sum(self.seconds.values())
        for number in range(count):
            place = operations + number * ctypes.sizeof(Operation)
            operation = Operation.from_address(place)
            name = self._names[operation.function]
            part, quantising = PARTS.get(name, "other operations"), 0.0
            numbers = integers(operation, arguments, bases, rows)
            if name == "attention":
                self.products[part] += attention_products(numbers)
            if name in PRODUCTS:
                count_of, inputs, outputs = (numbers[index] for index in SIZES[name])
                part = f"{numbers[BITS]} bits" if name == "multiply_integer" else "float32"
                if outputs == self._vocabulary:
                    part = "head"
                self.products[part] += count_of * inputs * outputs
                if name == "multiply_integer":
                    quantising = self._quantise(numbers, operation, arguments)
            started = time.process_time()
            self._run(place, 1, arguments, bases, rows)
            self.seconds[part] += time.process_time() - started - quantising
            self.seconds["quantising"] += quantising
        self.own_seconds += time.process_time() - begun - (sum(self.seconds.values()) - before)

    def _quantise(self, numbers: list[int], operation: Operation, arguments: int) -> float:
        """Return the seconds of the same product without outputs."""
        _, _, outputs = SIZES["multiply_integer"]
        unit = argument(arguments, operation.first + operation.integers).constant
        given = [*numbers[:outputs], 0, *numbers[outputs + 1 :], as_float(unit)]
        started = time.process_time()
        kernels().multiply_integer(*given)
        return time.process_time() - started


class Prompt(NamedTuple):
    """The cost of one prompt."""

    seconds: float
    parts: Mapping[str, float]
    products: Mapping[str, int]


def argument(arguments: int, index: int) -> Argument:
    return Argument.from_address(arguments + index * ctypes.sizeof(Argument))


def integers(operation: Operation, arguments: int, bases: int, rows: int) -> list[int]:
    """Return the values of an operation's integer arguments."""
    own = (argument(arguments, operation.first + index) for index in range(operation.integers))
    addresses = ctypes.cast(bases, ctypes.POINTER(ctypes.c_int64))
    return [addresses[one.base] + one.constant + one.slope * rows for one in own]


def as_float(bits: int) -> float:
    return ctypes.c_float.from_buffer_copy(ctypes.c_int32(bits & 0xFFFFFFFF)).value


def measure(engine: LLMEngine, timed: Timed, tokens: int, number: int) -> Prompt:
    """Compute a prompt that no other number has had."""
    timed.seconds.clear()
    timed.products.clear()
    timed.own_seconds = 0.0
    prompt = [(index * 13 + number * 17) % 10_000 + 100 for index in range(tokens)]
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    engine.add_request(f"{tokens}-{number}", {"prompt_token_ids": prompt}, params)
    started = time.process_time()
    while engine.has_unfinished_requests():
        engine.step()
    seconds = time.process_time() - started - timed.own_seconds
    return Prompt(seconds, dict(timed.seconds), dict(timed.products))


def attention_products(numbers: Sequence[int]) -> int:
    """Return the multiply-adds of causal attention without windows. numbers: its integer arguments."""
    sequences = ctypes.cast(numbers[SEQUENCES], ctypes.POINTER(ctypes.c_int32))
    pairs = 0  # of a token and one that it sees
    for index in range(numbers[SEQUENCES + 1]):
        _, _, tokens, context = sequences[4 * index : 4 * index + 4]
        pairs += tokens * context - tokens * (tokens - 1) // 2
    return pairs * numbers[HEADS] * sum(numbers[place] for place in DIMS)


def shares(prompts: Sequence[Prompt], rates: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return by part its seconds, its share of the prompt's and, where it multiplies, that of the limit."""
    whole = median(prompt.seconds for prompt in prompts)
    names = dict.fromkeys(name for prompt in prompts for name in prompt.parts)
    seconds = {name: median(prompt.parts[name] for prompt in prompts) for name in names}
    seconds["Python and torch"] = whole - sum(seconds.values())
    found = {}
    products = prompts[0].products
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        found[name] = {"seconds": round(spent, 4), "share": round(spent / whole, 3)}
        if name in products:
            rate = rates.get(name, rates["float32"])
            found[name]["share_of_limit"] = round(products[name] / 1e9 / spent / rate, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 2040, 8000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    settings = EngineArgs(
        model=flags.model, max_model_len=max(flags.tokens) + 1, max_num_seqs=8, enable_prefix_caching=False
    )
    engine = LLMEngine.from_engine_args(settings)
    torch.set_num_threads(flags.threads)
    timed = Timed(kernels().run_program, engine.config.model_config.vocab_size)
    kernels().run_program = timed
    machine = limits()
    rates = {name: limit["registers"] for name, limit in machine.items()}
    figures = {}
    for tokens in flags.tokens:
        prompts = [measure(engine, timed, tokens, number) for number in range(flags.rounds)]
        parts = shares(prompts, rates)
        figures[str(tokens)] = parts
        print(f"{tokens} tokens, {median(prompt.seconds for prompt in prompts):.3f} s")
        for name, part in parts.items():
            limit = f", {part['share_of_limit']:.0%} of the limit" if "share_of_limit" in part else ""
            print(f"  {name}: {part['seconds']:.3f} s, {part['share']:.1%}{limit}")
    scheduler = engine.config.scheduler_config
    step = {"tokens": scheduler.max_num_batched_tokens, "ms": scheduler.max_step_ms}
    kernels_in_use = engine.config.device_config.kernels_in_use
    result = {"kernels": kernels_in_use, "limits_of_a_step": step, "limits": machine, "figures": figures}
    print(f"saved {save('cpu.prompt_parts', result)}")


if __name__ == "__main__":
    main()
