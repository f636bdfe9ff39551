"""The kernels of a step other than attention, compared with torch's operations.

Their sizes are those of an 8B model; norms and heads, whose kernels are short, are measured at a small model's too.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.limits import CALLS, DEVICE, DTYPE, Limits, seconds
from benchmarks.gpu.report import Row, beside
from benchmarks.gpu.shapes import SHAPES
from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.heads.pending import PendingRotation
from engine_server.modeling.kernels.activation import gated
from engine_server.modeling.kernels.head_write import write_heads
from engine_server.modeling.kernels.matmul import linear
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate
from engine_server.modeling.kernels.sampling import sample
from engine_server.modeling.kernels.sampling_parameters import PARAMETERS
from engine_server.modeling.layers.kernel_sets.triton import TRITON
from engine_server.modeling.layers.norm import FusedRMSNorm

HIDDEN, WIDTH, VOCABULARY = 4096, 14336, 128256
MODELS = {name: SHAPES[name] for name in ("Llama-3.1-8B", "Qwen3-0.6B")}
BLOCK_SIZE = 16
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
        for model, shape in MODELS.items():
            for make_for_model in (norm, heads):
                yield compare(partial(make_for_model, model, shape, tokens, limits))
        for make in (activation, product):
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


def norm(model: str, shape: dict[str, Any], tokens: int, limits: Limits) -> Case:
    hidden = shape["hidden_size"]
    x, residual, weight = numbers(tokens, hidden), numbers(tokens, hidden), numbers(hidden)
    return Case(
        f"sum and RMSNorm {model} {tokens}",
        lambda: rms_norm(x, weight, EPS, residual=residual)[1],
        lambda: F.rms_norm(x + residual, (hidden,), weight, EPS),
        4 * x.nbytes / limits.copy,
        "bandwidth",
    )


class HeadWrite(NamedTuple):
    """Norms, if the model has them, and rotations of a step's heads, and the write of K and V to the cache."""

    keys: Pages
    values: Pages
    slots: Tensor  # int32
    long_slots: Tensor
    cos: Tensor  # [tokens, dim / 2]
    sin: Tensor
    norms: list[FusedRMSNorm]

    def ours(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rotation = PendingRotation(rotate, self.cos, self.sin, False)
        return write_heads(self.keys, self.values, query, key, value, self.slots, rotation, *self.norms)

    def theirs(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.norms:
            query, key = (
                F.rms_norm(x, norm.weight.shape, norm.weight, EPS)
                for x, norm in zip((query, key), self.norms, strict=True)
            )
        cos, sin = (torch.cat([half, half], -1)[:, None] for half in (self.cos, self.sin))
        turned = []
        for x in (query, key):
            one, other = x.chunk(2, -1)
            turned.append(x * cos + torch.cat([-other, one], -1) * sin)
        for cache, new in zip((self.keys, self.values), (turned[1], value), strict=True):
            cache.data.flatten(0, 1).index_copy_(0, self.long_slots, new)
        return turned[0]


def head_write(shape: dict[str, Any], tokens: int) -> HeadWrite:
    dim, kv_heads = shape["head_dim"], shape["num_key_value_heads"]
    angles = torch.rand(tokens, dim // 2, device=DEVICE)
    slots, normed = torch.randperm(tokens, device=DEVICE), shape["model_type"] == "qwen3"
    keys, values = (Pages(numbers(-(-tokens // BLOCK_SIZE), BLOCK_SIZE, kv_heads, dim)) for _ in range(2))
    return HeadWrite(
        keys,
        values,
        slots.int(),
        slots,
        angles.cos().to(DTYPE),
        angles.sin().to(DTYPE),
        [FusedRMSNorm(TRITON, nn.Parameter(numbers(dim), False), EPS, 0.0) for _ in range(2 * normed)],
    )


def heads(model: str, shape: dict[str, Any], tokens: int, limits: Limits) -> Case:
    write, kv_heads = head_write(shape, tokens), shape["num_key_value_heads"]
    given = [
        numbers(tokens, count, shape["head_dim"])
        for count in (shape["num_attention_heads"], kv_heads, kv_heads)
    ]
    return Case(
        f"{'norms, ' * bool(write.norms)}rotary and write {model} {tokens}",
        lambda: write.ours(*given),
        lambda: write.theirs(*given),
        2 * sum(part.nbytes for part in given) / limits.copy,
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
