"""Launch settings of the attention kernels, by the size of heads."""

from typing import NamedTuple

import triton
from torch import Tensor


class Launch(NamedTuple):
    """Settings for one size of head. They fit into 99 KiB of shared memory with elements of 2 bytes."""

    # Queries of a tile: tokens * query heads of one KV head.
    rows: int
    # Keys per product.
    keys: int
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
# Minimum number of rows and columns of a tensor core's product.
MIN_TILE = 16


def launch_for(table: dict[int, Launch], query: Tensor, keys: Tensor, values: Tensor) -> Launch:
    """Return the settings for heads of these shapes."""
    launch = table[max(MIN_DIM, triton.next_power_of_2(max(keys.shape[3], values.shape[3])))]
    group = query.shape[1] // keys.shape[2]
    wide = query.dtype.itemsize // 2  # float32 takes twice the memory
    rows = max(MIN_TILE, launch.rows // wide, triton.next_power_of_2(group))
    return launch._replace(rows=rows, keys=max(MIN_TILE, launch.keys // wide))
