"""How the attention kernels are launched: tiles by size of head, and how many programs share a context."""

from typing import NamedTuple

import triton
from torch import Tensor


class Launch(NamedTuple):
    """Settings for one size of head. They fit into 99 KiB of shared memory with elements of 2 bytes."""

    rows: int  # queries of a tile: tokens * query heads of one KV head
    keys: int  # keys that are looked at together
    warps: int
    stages: int


# By the larger of K's and V's dims, rounded up to a power of two.
PREFILL = {
    64: Launch(128, 64, 4, 3),
    128: Launch(128, 64, 8, 2),
    256: Launch(64, 32, 4, 2),
    512: Launch(32, 16, 4, 2),
}
DECODE = {
    64: Launch(16, 128, 4, 3),
    128: Launch(16, 64, 4, 3),
    256: Launch(16, 32, 4, 3),
    512: Launch(16, 16, 4, 3),
}
MIN_DIM, MAX_DIM = min(PREFILL), max(PREFILL)
MIN_TILE = 16  # what a tensor core takes

MOST_SPLITS = 64
LEAST_SPLIT = 128  # keys; where a part has fewer, joining takes longer than sharing gains
MOST_SPLIT = 8192  # keys; a program with more would be at work when all others have ended


def launch_for(table: dict[int, Launch], query: Tensor, keys: Tensor, values: Tensor) -> Launch:
    """The settings for these shapes."""
    launch = table[max(MIN_DIM, triton.next_power_of_2(max(keys.shape[3], values.shape[3])))]
    group = query.shape[1] // keys.shape[2]
    wide = query.dtype.itemsize // 2  # float32 takes twice the room
    rows = max(MIN_TILE, launch.rows // wide, triton.next_power_of_2(group))
    return launch._replace(rows=rows, keys=max(MIN_TILE, launch.keys // wide))


def num_splits(programs: int, longest: int, processors: int) -> int:
    """How many programs should share each sequence's keys, where `programs` ran without; a power of two.

    Two for each processor, none with too many of the `longest` context's keys, and none with few.
    """
    wanted = max(triton.cdiv(2 * processors, programs), triton.cdiv(longest, MOST_SPLIT))
    most = min(MOST_SPLITS, max(1, longest // LEAST_SPLIT))
    splits: int = min(triton.next_power_of_2(wanted), 1 << most.bit_length() - 1)
    return splits
