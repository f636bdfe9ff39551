"""What a layer is made of beside attention, at the sizes of an 8B model: our kernels beside torch's own calls."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.limits import DEVICE, DTYPE, Limits, seconds
from benchmarks.gpu.report import Row, beside
from engine_server.modeling.kernels.activation import gated
from engine_server.modeling.kernels.matmul import linear
from engine_server.modeling.kernels.norm import add_rms_norm
from engine_server.modeling.kernels.rotary import rotate

HIDDEN, WIDTH, HEADS, KV_HEADS, DIM = 4096, 14336, 32, 8, 128
TOKENS = (1, 256, 8192)
EPS = 1e-5


def measure(limits: Limits) -> Iterator[Row]:
    for tokens in TOKENS:
        yield norm(tokens, limits)
        yield rope(tokens, limits)
        yield activation(tokens, limits)
        yield product(tokens, limits)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def compare(
    name: str, own: Callable[[], Tensor], other: Callable[[], Tensor], floor: float, limit: str
) -> Row:
    error = (own() - other()).abs().max().item()
    return beside(name, seconds(own), seconds(other), floor, limit, error)


def norm(tokens: int, limits: Limits) -> Row:
    x, residual, weight = numbers(tokens, HIDDEN), numbers(tokens, HIDDEN), numbers(HIDDEN)
    return compare(
        f"sum and RMSNorm {tokens}",
        lambda: add_rms_norm(x, residual, weight, EPS)[1],
        lambda: F.rms_norm(x + residual, (HIDDEN,), weight, EPS),
        4 * x.nbytes / limits.copy,
        "bandwidth",
    )


def rope(tokens: int, limits: Limits) -> Row:
    query, key = numbers(tokens, HEADS, DIM), numbers(tokens, KV_HEADS, DIM)
    angles = torch.rand(tokens, DIM // 2, device=DEVICE)
    cos, sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)
    whole_cos, whole_sin = (torch.cat([half, half], -1)[:, None] for half in (cos, sin))

    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * whole_cos + torch.cat([-other, one], -1) * whole_sin

    return compare(
        f"rotary {tokens}",
        lambda: rotate(query, key, cos, sin)[0],
        lambda: (turned(query), turned(key))[0],
        2 * (query.nbytes + key.nbytes) / limits.copy,
        "bandwidth",
    )


def activation(tokens: int, limits: Limits) -> Row:
    gate, up = numbers(tokens, 2 * WIDTH).chunk(2, -1)  # as one product gives them
    return compare(
        f"silu and product {tokens}",
        lambda: gated("silu", gate, up),
        lambda: F.silu(gate) * up,
        3 * gate.nbytes / limits.copy,
        "bandwidth",
    )


def product(tokens: int, limits: Limits) -> Row:
    """The linear layer of batch-invariant mode beside torch's."""
    x, weight = numbers(tokens, HIDDEN), numbers(2 * WIDTH, HIDDEN)
    reading, computing = weight.nbytes / limits.copy, 2 * tokens * weight.numel() / limits.matmul
    limit = "bandwidth" if reading > computing else "matmul"
    return compare(
        f"linear, batch-invariant {tokens}",
        lambda: linear(x, weight),
        lambda: F.linear(x, weight),
        max(reading, computing),
        limit,
    )
