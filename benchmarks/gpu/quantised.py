"""Products with quantised weights alone, compared with torch's products of the dequantised ones.

    python -m benchmarks.gpu.quantised

tries launch settings at the same sizes and prints the best ones, for the constants of
engine_server/modeling/kernels/quantized_row.py and quantized_matmul.py.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.gpu.limits import DEVICE, DTYPE, Limits, rotated, seconds
from benchmarks.gpu.report import Row, beside
from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT, INT4
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.triton_quantized import fuse_dequantisation
from engine_server.modeling.kernels import quantized_matmul, quantized_row

GROUP = 128  # inputs of a scale, of integers
ROWS = (1, 16, 64, 256, 4096)


class Size(NamedTuple):
    outputs: int
    inputs: int


SIZES = (Size(4096, 4096), Size(28672, 4096), Size(4096, 14336))  # of Llama-3.1-8B

LAUNCHES = [
    quantized_matmul.Launch(*settings)
    for settings in ((64, 4, 3), (64, 4, 4), (64, 4, 5), (128, 8, 3), (128, 8, 3, 128))
]


def integers(size: Size) -> GroupedFormat:
    codes = torch.randint(0, 256, (size.outputs, size.inputs // 2), dtype=torch.uint8, device=DEVICE)
    scales = torch.rand(size.outputs, size.inputs // GROUP, device=DEVICE) / 8 / size.inputs**0.5
    return GroupedFormat(Form(INT4, FLOAT, GROUP), codes, scales.half(), DTYPE)


def float8(size: Size) -> GroupedFormat:
    codes = torch.randn(size, device=DEVICE).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.rand(size.outputs, 1, device=DEVICE) / size.inputs**0.5
    return GroupedFormat(Form(E4M3, FLOAT, size.inputs), codes, scales, DTYPE)


def float4(size: Size, form: Form) -> GroupedFormat:
    codes = torch.randint(0, 256, (size.outputs, size.inputs // 2), dtype=torch.uint8, device=DEVICE)
    scales = torch.randint(
        56, 72, (size.outputs, size.inputs // form.group), dtype=torch.uint8, device=DEVICE
    )
    if form.scales is E8M0:
        return GroupedFormat(form, codes, scales + 48, DTYPE)
    factors = torch.full((size.outputs, 1), 1 / size.inputs**0.5, device=DEVICE)
    return GroupedFormat(form, codes, scales, DTYPE, factors=factors)


KINDS: dict[str, Callable[[Size], GroupedFormat]] = {
    "4 bits": integers, "float8": float8, "MXFP4": partial(float4, form=Form(E2M1, E8M0, 32)),
    "NVFP4": partial(float4, form=Form(E2M1, E4M3, 16)),
}  # fmt: skip


def num_bytes(weight: GroupedFormat) -> int:
    return sum(tensor.nbytes for tensor in weight.parameters().values())


def make(kind: str, size: Size) -> list[GroupedFormat]:
    """Return as many weights as have to take turns so that the cache holds none of them."""
    first = KINDS[kind](size)
    return [first, *(KINDS[kind](size) for _ in range(rotated(num_bytes(first)) - 1))]


def measure(limits: Limits) -> Iterator[Row]:
    for size, kind in itertools.product(SIZES, KINDS):
        weights = make(kind, size)
        dense = [weight.dense() for weight in weights]
        for rows in ROWS:
            yield compare(kind, rows, weights, dense, limits)


def compare(
    kind: str, rows: int, weights: Sequence[GroupedFormat], dense: Sequence[Tensor], limits: Limits
) -> Row:
    size = Size(*dense[0].shape)
    x = torch.randn(rows, size.inputs, device=DEVICE, dtype=DTYPE)
    reading = (num_bytes(weights[0]) + x.nbytes + rows * size.outputs * x.element_size()) / limits.copy
    computing = 2 * rows * dense[0].numel() / limits.matmul
    theirs = [partial(F.linear, x, weight) for weight in dense]
    return beside(
        f"{kind} {size.outputs} x {size.inputs}, {rows}",
        seconds(ours(weights, x)),
        seconds(theirs),
        max(reading, computing),
        "bandwidth" if reading > computing else "matmul",
        (ours(weights[:1], x)[0]() - theirs[0]()).abs().max().item(),
    )


def ours(weights: Sequence[GroupedFormat], x: Tensor) -> list[Callable[[], Tensor]]:
    products = [fuse_dequantisation(weight) for weight in weights]
    return [partial(product.apply, x) for product in products]


def tune() -> None:
    """Print the best settings of the kernels of one row and of tiles, and when dequantising once is faster."""
    for kind, size in itertools.product(KINDS, SIZES[:2]):
        weights = make(kind, size)
        name = f"{kind} {size.outputs} x {size.inputs}"
        names: tuple[str, ...] = ("COLUMNS", "DEPTH_BYTES", "WARPS")
        tried = [(4, 512, 1), (8, 512, 1), (16, 512, 4), (4, 1024, 1)]
        report(f"{name}, 1, {names}", best(quantized_row, names, tried, weights, 1))
        for rows in (16, 64):
            names, settings = ("LAUNCH", "PROGRAMS"), itertools.product(LAUNCHES, (1, 2, 4))
            report(f"{name}, {rows}, {names}", best(quantized_matmul, names, [*settings], weights, rows))
        for rows in (64, 128, 256, 512):
            found = best(quantized_matmul, ("MOST_ROWS",), [(0,), (rows,)], weights, rows)
            report(f"{name}, {rows}, MOST_ROWS", found)


def best(
    module: object,
    names: Sequence[str],
    tried: Sequence[tuple[object, ...]],
    weights: Sequence[GroupedFormat],
    rows: int,
) -> list[tuple[float, tuple[object, ...]]]:
    """Return the seconds of a product with each of the values of a module's constants, ascending."""
    x = torch.randn(rows, weights[0].shape[1], device=DEVICE, dtype=DTYPE)
    before, found = [getattr(module, name) for name in names], []
    for values in tried:
        for name, value in zip(names, values, strict=True):
            setattr(module, name, value)
        try:
            found.append((seconds(ours(weights, x)), values))
        except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
            continue
    for name, value in zip(names, before, strict=True):
        setattr(module, name, value)
    return sorted(found, key=lambda one: one[0])


def report(name: str, found: Sequence[tuple[float, tuple[object, ...]]]) -> None:
    print(f"{name}:", *(f"{taken * 1e6:.1f} us {values};" for taken, values in found[:5]), flush=True)


if __name__ == "__main__":
    tune()
