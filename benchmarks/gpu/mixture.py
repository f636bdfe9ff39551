"""The experts of a mixture at the sizes of Qwen3-30B-A3B, compared with transformers' grouped forward.

    python -m benchmarks.gpu.mixture dense|int4|float8

times launch settings of both grouped products for several numbers of tokens, for the tables in
engine_server/modeling/kernels/expert_launch.py. Every call takes choices of its own, so that it finds the weights of
other experts in the L2 cache. A row is held to the bandwidth of the weights that its choices need, or to the rate of
its products.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from benchmarks.gpu.limits import CALLS, DEVICE, DTYPE, Limits, seconds
from benchmarks.gpu.report import Row, beside
from benchmarks.gpu.shapes import SHAPES
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.triton_quantized import fuse_dequantisation
from engine_server.modeling.formats.weight_format import WeightLayout
from engine_server.modeling.kernels.activation import gated
from engine_server.modeling.kernels.expert_launch import ExpertLaunch
from engine_server.modeling.kernels.expert_products import multiply
from engine_server.modeling.kernels.expert_tiles import plan_tiles
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, receive_gated
from engine_server.modeling.loader.rounding import after

CONFIG = SHAPES["Qwen3-30B-A3B"]
TOKENS = (1, 8, 64, 256, 8192)
LAYOUTS: dict[str, WeightLayout] = {
    "dense": fuse_dequantisation,
    "int4": partial(after, partial(rounded_to_integers, bits=4, group=128), fuse_dequantisation),
    "float8": partial(after, rounded_to_float8, fuse_dequantisation),
}
# Bytes of a weight, its scale included.
BYTES = {"dense": 2.0, "int4": 0.5 + 4 / 128, "float8": 1.0}
# Columns, inputs, warps and stages, by the rows of a tile, and the numbers of tokens for which they are timed.
CANDIDATES: dict[int, tuple[tuple[int, ...], Sequence[tuple[int, int, int, int]]]] = {
    16: (
        (1, 8, 64, 256),
        (
            (32, 128, 4, 5), (32, 256, 4, 4), (64, 64, 4, 5), (64, 128, 4, 3), (64, 128, 4, 5), (64, 256, 4, 3),
            (64, 256, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 4, 4), (128, 128, 8, 4),
        ),
    ),
    32: ((256, 512), ((64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3), (256, 64, 8, 3))),
    64: ((512, 1024), ((64, 64, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (256, 64, 8, 4))),
    128: ((1024, 8192), ((64, 64, 8, 4), (128, 64, 8, 3), (128, 64, 8, 4), (256, 64, 8, 3), (256, 64, 8, 4))),
}  # fmt: skip


class Step(NamedTuple):
    """The inputs of a layer's experts."""

    values: Tensor  # [tokens, hidden]
    experts: Tensor  # int64 [tokens, chosen]
    weights: Tensor  # [tokens, chosen]


def make_step(tokens: int) -> Step:
    scores = torch.rand(tokens, CONFIG["num_experts"], device=DEVICE)
    weights, experts = scores.topk(CONFIG["num_experts_per_tok"])
    return Step(
        torch.randn(tokens, CONFIG["hidden_size"], device=DEVICE, dtype=DTYPE), experts, weights.to(DTYPE)
    )


def make_experts() -> Any:
    """Return transformers' experts with random weights."""
    config = Qwen3MoeConfig(**CONFIG | {"experts_implementation": "grouped_mm"})
    experts = Qwen3MoeExperts(config).to(DEVICE, DTYPE)
    for parameter in experts.parameters():
        parameter.requires_grad_(False).normal_(0.0, parameter.shape[-1] ** -0.5)
    return experts


def fused(plain: Any, form: str) -> Any:
    """Return our experts with the weights of transformers'."""
    own: Any = Qwen3MoeExperts.__new__(Qwen3MoeExperts)
    own.__dict__ = plain.__dict__ | {"_parameters": dict(plain._parameters)}
    receive_gated(own, FusedExperts, LAYOUTS[form]).settle()
    own._apply_gate = partial(gated, "silu")
    return own


def floor(form: str, step: Step, limits: Limits) -> tuple[float, str]:
    """Return the time at the device's limit, and which one that is."""
    weights = 3 * CONFIG["hidden_size"] * CONFIG["moe_intermediate_size"]
    reading = BYTES[form] * weights * len(step.experts.unique()) / limits.copy
    computing = 2 * weights * step.experts.numel() / limits.matmul
    return (reading, "bandwidth") if reading > computing else (computing, "matmul")


def measure(limits: Limits) -> Iterator[Row]:
    with torch.inference_mode():
        plain = make_experts()
        for form in LAYOUTS:
            own = fused(plain, form)
            for tokens in TOKENS:
                yield measure_step(plain, own, form, tokens, limits)


def measure_step(plain: Any, own: Any, form: str, tokens: int, limits: Limits) -> Row:
    """Return the row of quantised experts without a counterpart: transformers' are dense."""
    steps = [make_step(tokens) for _ in range(CALLS)]
    least, limit = floor(form, steps[0], limits)
    name = f"experts {tokens}" + f", {form}" * (form != "dense")
    taken = seconds([partial(own, *step) for step in steps])
    if form != "dense":
        return Row(name, {"us": taken * 1e6, f"% of {limit}": least / taken * 100})
    error = (own(*steps[0]) - plain(*steps[0])).abs().max().item()
    return beside(name, taken, seconds([partial(plain, *step) for step in steps]), least, limit, error)


def tune(form: str) -> None:
    """Print the best launch settings for each number of tokens, with the times of both products."""
    started = time.monotonic()
    own = fused(make_experts(), form)
    found: dict[int, list[tuple[float, float, float, ExpertLaunch]]] = {}
    for rows, (counts, settings) in CANDIDATES.items():
        for tokens in counts:
            steps = [make_step(tokens) for _ in range(CALLS)]
            for launch in (ExpertLaunch(rows, *rest) for rest in settings):
                try:
                    first, second = (seconds(works) for works in products(own, steps, launch))
                except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
                    continue
                found.setdefault(tokens, []).append((first + second, first, second, launch))
    for tokens, results in sorted(found.items()):
        for total, first, second, launch in sorted(results)[:4]:
            times = " + ".join(f"{one * 1e6:.1f}" for one in (first, second))
            print(f"{form} {tokens}: {launch}: {times} = {total * 1e6:.1f} us")
    print(f"{time.monotonic() - started:.0f} s")


def products(own: Any, steps: Sequence[Step], launch: ExpertLaunch) -> Iterator[list[Callable[[], Tensor]]]:
    """Yield the calls of the first product, with its gate, and those of the second."""
    choices = [plan_tiles(step.experts, own.num_experts, launch.rows) for step in steps]
    gate_up, down = own.weights(GATE_UP), own.weights(DOWN)
    values = [
        multiply(step.values, gate_up, one, launch, "silu") for step, one in zip(steps, choices, strict=True)
    ]
    yield [
        partial(multiply, step.values, gate_up, one, launch, "silu")
        for step, one in zip(steps, choices, strict=True)
    ]
    yield [partial(multiply, own, down, one, launch) for own, one in zip(values, choices, strict=True)]


if __name__ == "__main__":
    with torch.inference_mode():
        tune(sys.argv[1])
