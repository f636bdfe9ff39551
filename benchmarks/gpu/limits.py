"""The device's limits, to which every figure is compared, and the timing of work on the device."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from math import ceil, nan
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.gpu.report import Row

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
REPEATS = 10
CALLS = 10  # in one graph, since the launch of a graph takes as long as a small kernel
TERA = 1e12
L2_BYTES = 256 << 20  # more than any GPU's


class Limits(NamedTuple):
    """The device's limits. Unknown ones are NaN, and so is every share of them."""

    copy: float = nan  # bytes a second, read and written
    matmul: float = nan  # operations a second


Work = Callable[[], object]


def seconds(works: Sequence[Work]) -> float:
    """Return the device time of one call of the works, of which a graph makes CALLS in turn.

    The L2 cache is cold when the graph begins, and for each of several works that read other memory. Subtracts the
    time of an empty graph.
    """
    return (graph_seconds([*islice(cycle(works), CALLS)]) - graph_seconds([])) / CALLS


def rotated(num_bytes: int) -> int:
    """Return how many works of `num_bytes` each have to take turns so that all find the L2 cache cold."""
    return min(CALLS, ceil(L2_BYTES / num_bytes))


def graph_seconds(works: Sequence[Work]) -> float:
    """Return the median device time of a graph that calls each work once."""
    for work in works:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    flush = torch.empty(L2_BYTES, dtype=torch.int8, device=DEVICE)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for begin, end in marks:
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return median(begin.elapsed_time(end) for begin, end in marks) / 1e3


def measure(megabytes: int = 2048, size: int = 8192) -> Iterator[Row]:
    """Measure a copy within the device and a product of square random bfloat16 matrices."""
    device = torch.cuda.get_device_properties(DEVICE)
    yield Row(
        device.name, {"GiB": device.total_memory / 2**30, "multiprocessors": device.multi_processor_count}
    )
    source = torch.randn(megabytes << 18, device=DEVICE)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=DEVICE, dtype=DTYPE) for _ in range(2))
    # Not `copy_`, of which a graph makes a copy by other means than a kernel's: it has two thirds of the bandwidth.
    copy = 2 * source.nbytes / seconds([lambda: torch.neg(source, out=target)])
    matmul = 2 * size**3 / seconds([lambda: left @ right])
    yield Row("copy", {"TB/s": copy / TERA})
    yield Row("matmul", {"TFLOP/s": matmul / TERA})
