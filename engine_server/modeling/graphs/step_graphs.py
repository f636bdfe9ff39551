"""Parts of decode steps as CUDA graphs: the host launches one graph instead of some hundred kernels."""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator

import torch

logger = logging.getLogger(__name__)


def ladder(most: int) -> list[int]:
    """Return the batch sizes to capture, ascending: 1, 2, 4, 8, 16, then spaced so that padding is at most a fifth."""
    sizes = [1, 2, 4, 8, 16]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(8, 1 << sizes[-1].bit_length() - 3))
    return sorted({min(size, most) for size in sizes})


class StepGraphs:
    """One part of a decode step, captured for several batch sizes.

    run: launches the part for a batch size. It reads and writes buffers at fixed addresses on the device, which all
    sizes share.
    """

    def __init__(self, run: Callable[[int], None], sizes: list[int]) -> None:
        """Capture every size. Raises RuntimeError if the model waits for the device, or memory runs out."""
        started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
        self._sizes = sizes
        self._graphs = dict(capture(run, sizes))
        taken = free - torch.cuda.mem_get_info()[0] >> 20
        seconds = time.monotonic() - started
        logger.info("captured %d CUDA graphs in %.1f s, %d MiB", len(self._graphs), seconds, taken)

    def size_for(self, count: int) -> int | None:
        """Return the smallest captured size with room for `count` sequences, or None."""
        position = bisect_left(self._sizes, count)
        return self._sizes[position] if position < len(self._sizes) else None

    def replay(self, size: int) -> None:
        """Launch the graph of `run(size)`."""
        self._graphs[size].replay()


def capture(run: Callable[[int], None], sizes: list[int]) -> Iterator[tuple[int, torch.cuda.CUDAGraph]]:
    """Capture the largest size first, so that the others fit into its memory."""
    pool = torch.cuda.graph_pool_handle()
    for size in reversed(sizes):
        run(size)  # kernels that are compiled or chosen at the first call can't be captured
        torch.cuda.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # NCCL's own thread queries the device during the capture, which the default mode reports as an error.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                run(size)
        finally:
            torch.cuda.set_stream(stream)  # a capture that fails does not leave its own
        yield size, graph
