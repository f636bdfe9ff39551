"""The kernels of a step other than attention, at the sizes of an 8B model, compared with torch's operations."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.limits import CALLS, DEVICE, DTYPE, Limits, seconds
from benchmarks.gpu.report import Row, beside
from engine_server.modeling.kernels.activation import gated
from engine_server.modeling.kernels.matmul import linear
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate
from engine_server.modeling.kernels.sampling import PARAMETERS, sample

HIDDEN, WIDTH, HEADS, KV_HEADS, DIM, VOCABULARY = 4096, 14336, 32, 8, 128, 128256
TOKENS = (1, 256, 8192)
SAMPLED = (1, 256)  # sequences
TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.95
EPS = 1e-5


class Case(NamedTuple):
    """A kernel and its counterpart in torch, on inputs of their own."""

    name: str
    own: Callable[[], Tensor]
    other: Callable[[], Tensor]
    floor: float  # seconds at the device's limit
    limit: str


def measure(limits: Limits) -> Iterator[Row]:
    for tokens in TOKENS:
        for make in (norm, rope, activation, product):
            yield compare(partial(make, tokens, limits))
    for sequences in SAMPLED:
        yield sampling(sequences, limits)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def compare(make: Callable[[], Case]) -> Row:
    cases = [make() for _ in range(CALLS)]
    name, own, other, floor, limit = cases[0]
    error = (own() - other()).abs().max().item()
    return beside(name, *times(cases), floor, limit, error)


def times(cases: list[Case]) -> tuple[float, float]:
    """Return the seconds of the kernel and of torch."""
    return seconds([case.own for case in cases]), seconds([case.other for case in cases])


def norm(tokens: int, limits: Limits) -> Case:
    x, residual, weight = numbers(tokens, HIDDEN), numbers(tokens, HIDDEN), numbers(HIDDEN)
    return Case(
        f"sum and RMSNorm {tokens}",
        lambda: rms_norm(x, weight, EPS, residual=residual)[1],
        lambda: F.rms_norm(x + residual, (HIDDEN,), weight, EPS),
        4 * x.nbytes / limits.copy,
        "bandwidth",
    )


def rope(tokens: int, limits: Limits) -> Case:
    query, key = numbers(tokens, HEADS, DIM), numbers(tokens, KV_HEADS, DIM)
    angles = torch.rand(tokens, DIM // 2, device=DEVICE)
    cos, sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)
    whole_cos, whole_sin = (torch.cat([half, half], -1)[:, None] for half in (cos, sin))

    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * whole_cos + torch.cat([-other, one], -1) * whole_sin

    return Case(
        f"rotary {tokens}",
        lambda: rotate(query, key, cos, sin)[0],
        lambda: (turned(query), turned(key))[0],
        2 * (query.nbytes + key.nbytes) / limits.copy,
        "bandwidth",
    )


def activation(tokens: int, limits: Limits) -> Case:
    both = numbers(tokens, 2 * WIDTH)
    gate, up = both.chunk(2, -1)
    return Case(
        f"silu and product {tokens}",
        lambda: gated("silu", both),
        lambda: F.silu(gate) * up,
        1.5 * both.nbytes / limits.copy,
        "bandwidth",
    )


def product(tokens: int, limits: Limits) -> Case:
    """Return the linear layer of batch-invariant mode beside torch's."""
    x, weight = numbers(tokens, HIDDEN), numbers(2 * WIDTH, HIDDEN)
    reading, computing = weight.nbytes / limits.copy, 2 * tokens * weight.numel() / limits.matmul
    limit = "bandwidth" if reading > computing else "matmul"
    return Case(
        f"linear, batch-invariant {tokens}",
        lambda: linear(x, weight),
        lambda: F.linear(x, weight),
        max(reading, computing),
        limit,
    )


def sampling(sequences: int, limits: Limits) -> Row:
    """Compare with the torch code of generation libraries; the draws differ, so there is no error to report."""
    cases = [draw(sequences, limits) for _ in range(CALLS)]
    own, other = times(cases)
    measures = {"us": own * 1e6, "% of bandwidth": cases[0].floor / own * 100, "us torch": other * 1e6}
    return Row(cases[0].name, measures)


def draw(sequences: int, limits: Limits) -> Case:
    logits = numbers(sequences, VOCABULARY)
    settings = np.zeros(sequences, PARAMETERS)
    settings["temperature"], settings["top_k"], settings["top_p"] = TEMPERATURE, TOP_K, TOP_P
    settings["seed"] = np.arange(sequences)
    parameters = torch.from_numpy(settings.view(np.int32).reshape(sequences, -1)).to(DEVICE)

    def drawn() -> Tensor:
        best, places = (logits.float() / TEMPERATURE).topk(TOP_K)
        chances = best.softmax(-1)
        before = chances.cumsum(-1) - chances
        noise = torch.empty_like(chances).exponential_()
        return places.gather(-1, (chances.masked_fill(before > TOP_P, 0) / noise).argmax(-1, keepdim=True))

    floor = logits.nbytes / limits.copy
    return Case(f"sampling {sequences}", lambda: sample(logits, parameters)[0], drawn, floor, "bandwidth")
