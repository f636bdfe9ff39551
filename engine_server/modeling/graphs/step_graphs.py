"""Parts of steps as CUDA graphs: the host launches one graph instead of some hundred kernels."""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator

import torch

logger = logging.getLogger(__name__)


def ladder(most: int, least: int = 1) -> list[int]:
    """Return the sizes to capture, ascending: 1, 2, 4, 8, 16, then spaced so that padding is at most a fifth."""
    sizes = [1, 2, 4, 8, 16]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(8, 1 << sizes[-1].bit_length() - 3))
    return sorted({min(max(size, least), most) for size in sizes})


class StepGraphs:
    """One part of a step, captured for several sizes.

    run: launches the part for a size. It reads and writes buffers at fixed addresses on the device, which all sizes
    share. prepare: stages, for each size, what `run` reads.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[int], None],
        sizes: list[int],
        prepare: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Capture every size. Raises RuntimeError if the model waits for the device, or memory runs out."""
        started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
        self._sizes = sizes
        self._graphs = dict(capture(run, sizes, prepare))
        self.bytes = max(0, free - torch.cuda.mem_get_info()[0])
        seconds = time.monotonic() - started
        logger.info(
            "captured %d CUDA graphs of %s in %.1f s, %d MiB",
            len(self._graphs),
            name,
            seconds,
            self.bytes >> 20,
        )

    def size_for(self, count: int) -> int | None:
        """Return the smallest captured size with room for `count`, or None."""
        position = bisect_left(self._sizes, count)
        return self._sizes[position] if position < len(self._sizes) else None

    def replay(self, size: int) -> None:
        """Launch the graph of `run(size)`."""
        self._graphs[size].replay()


def capture(
    run: Callable[[int], None], sizes: list[int], prepare: Callable[[int], None]
) -> Iterator[tuple[int, torch.cuda.CUDAGraph]]:
    """Capture the largest size first, so that the others fit into its memory."""
    pool = torch.cuda.graph_pool_handle()
    for size in reversed(sizes):
        prepare(size)
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
