"""Decode steps as CUDA graphs: the host launches one thing instead of some hundreds."""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def ladder(most: int) -> list[int]:
    """Batch sizes to capture, up to `most`: 1, 2, 4, 8, 16, then so close that at most a fifth is filled up."""
    sizes = [1, 2, 4, 8, 16]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(8, 1 << sizes[-1].bit_length() - 3))
    return sorted({min(size, most) for size in sizes})


class DecodeGraphs:
    """Decode steps of some sizes, captured.

    run: from a size to what a step gives, a row for each sequence. What it depends on beside the size is on the device,
    at the same place each time.
    """

    def __init__(self, run: Callable[[int], list[Tensor]], most: int) -> None:
        """Capture them. Raises RuntimeError where the model asks the device for something, or memory is short."""
        started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
        self._graphs = dict(capture(run, ladder(most)))
        self._sizes = sorted(self._graphs)
        taken = free - torch.cuda.mem_get_info()[0] >> 20
        seconds = time.monotonic() - started
        logger.info("captured %d CUDA graphs in %.1f s, %d MiB", len(self._sizes), seconds, taken)

    def size_for(self, count: int) -> int | None:
        """The smallest captured step with room for `count` sequences."""
        place = bisect_left(self._sizes, count)
        return self._sizes[place] if place < len(self._sizes) else None

    def replay(self, size: int) -> list[Tensor]:
        """What `run(size)` gives; the next replay overwrites it."""
        graph, results = self._graphs[size]
        graph.replay()
        return results


def capture(
    run: Callable[[int], list[Tensor]], sizes: list[int]
) -> Iterator[tuple[int, tuple[torch.cuda.CUDAGraph, list[Tensor]]]]:
    """The largest comes first, so that the others fit into its memory."""
    pool = torch.cuda.graph_pool_handle()
    for size in reversed(sizes):
        run(size)  # what is compiled or chosen at the first call can't be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own thread asks the device meanwhile, which the default mode takes for an error.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            results = run(size)
        yield size, (graph, results)
