"""The work list of a decode step, built on the device: the chunk of a sequence's keys that each program attends to.

All sequences are cut into chunks of one size, chosen so that the chunks of the longest contexts fill the device (as in
FlashInfer's load-balanced scheduler, Ye et al. 2025, arXiv 2501.01005). The lengths are read on the device, so a CUDA
graph captured for a number of sequences balances contexts of any lengths.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.heads.window import Window

# Number of keys of which a chunk's size is a multiple; with fewer, joining chunks costs more than it gains.
CHUNK = 128
# Items per program of `_plan`.
TILE = 16


class WorkList(NamedTuple):
    """Chunks of the sequences of one step, for layers with one window and one number of KV heads."""

    # int32 [items, 4]: sequence, first key, end of its keys, and its row of partial results. The row is -1 for the only
    # chunk of a sequence, and the sequence -1 for an item that is not needed.
    items: Tensor
    # int32 [n, 2]: each sequence's first row of partial results, and their number; 0 for a sequence of one chunk.
    rows: Tensor
    # Rows of partial results that any step may need.
    num_rows: int
    # int32 [n, kv heads]: chunks of a sequence whose partial results are written; zeros between launches.
    finished: Tensor


def spare_chunks(kv_heads: int, processors: int) -> int:
    """Return the number of chunks to add to one per sequence: two programs for each processor."""
    return -(-2 * processors // kv_heads)


def plan_work(sequences: Tensor, window: Window | None, kv_heads: int, spare: int) -> WorkList:
    """Cut the contexts of `sequences`, as `decode` takes them, into at most len(sequences) + spare chunks."""
    count = len(sequences)
    items = sequences.new_empty((count + spare, 4))
    rows, finished = sequences.new_empty((count, 2)), sequences.new_empty((count, kv_heads))
    _plan[(triton.cdiv(len(items), TILE),)](
        items, rows, finished, sequences, count, len(items), spare, kv_heads,
        WINDOW=window and window.size, CHUNKED=bool(window and window.chunked), CHUNK=CHUNK, TILE=TILE,
        WIDTH=max(TILE, triton.next_power_of_2(count)),
    )  # fmt: skip
    return WorkList(
        items, rows, 2 * spare, finished
    )  # a cut sequence has less than twice as many chunks as whole ones


@triton.jit(do_not_specialize=["count", "num_items", "spare", "kv_heads"])
def _plan(
    items, rows, finished, sequences, count, num_items, spare, kv_heads,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Build TILE items from all sequences' lengths; program 0 also builds the rows and clears `finished`."""
    numbers = tl.arange(0, WIDTH)
    context = tl.load(sequences + numbers * 4 + 3, mask=numbers < count, other=0)
    visible = context
    if WINDOW is not None:
        most = tl.maximum(context - 1, 0) % WINDOW + 1 if CHUNKED else WINDOW
        visible = tl.minimum(context, most)
    # A sum of n rounded-up quotients is at most n + total / size: at most the number of items.
    total = tl.sum(visible.to(tl.int64), 0)
    size = (tl.cdiv(tl.cdiv(total, spare), CHUNK) * CHUNK).to(tl.int32)
    size = tl.maximum(size, CHUNK)
    chunks = tl.where(numbers < count, tl.maximum(tl.cdiv(visible, size), 1), 0)
    ends = tl.cumsum(chunks, 0)
    parts = tl.where(chunks > 1, chunks, 0)
    first_rows = tl.cumsum(parts, 0) - parts
    if tl.program_id(0) == 0:
        tl.store(rows + numbers * 2, first_rows, mask=numbers < count)
        tl.store(rows + numbers * 2 + 1, parts, mask=numbers < count)
        for kv_head in range(kv_heads):
            tl.store(finished + numbers * kv_heads + kv_head, 0, mask=numbers < count)

    item = tl.program_id(0) * TILE + tl.arange(0, TILE)
    # An item's sequence is the only one whose items begin at or before it and end after it.
    own = (item[:, None] >= (ends - chunks)[None, :]) & (item[:, None] < ends[None, :])
    used = item < tl.sum(chunks, 0)
    sequence = tl.sum(tl.where(own, numbers[None, :], 0), 1)
    chunk = item - tl.sum(tl.where(own, (ends - chunks)[None, :], 0), 1)
    end_of_all = tl.sum(tl.where(own, context[None, :], 0), 1)
    begin = end_of_all - tl.sum(tl.where(own, visible[None, :], 0), 1) + chunk * size
    cut = tl.sum(tl.where(own, parts[None, :], 0), 1) > 0
    row = tl.where(cut, tl.sum(tl.where(own, first_rows[None, :], 0), 1) + chunk, -1)
    kept = item < num_items
    tl.store(items + item * 4, tl.where(used, sequence, -1), mask=kept)
    tl.store(items + item * 4 + 1, begin, mask=kept)
    tl.store(items + item * 4 + 2, tl.minimum(begin + size, end_of_all), mask=kept)
    tl.store(items + item * 4 + 3, row, mask=kept)
