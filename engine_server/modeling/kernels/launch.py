"""Launch settings of the attention kernels, by the size of heads."""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from engine_server.modeling.cache.quantised import FLOAT8


class Launch(NamedTuple):
    """Settings for one size of head.

    With elements of 2 bytes they take at most 99 KiB of shared memory before Hopper, which compute capabilities 8.6
    and 8.9 have, and 164 KiB on Hopper, where products read the queries from it too. Those of HOPPER and DECODE were
    chosen on an H200 by `python -m benchmarks.gpu.attention`.
    """

    # Queries of a tile: tokens * query heads of one KV head.
    rows: int
    # Keys per product.
    keys: int
    warps: int
    # K and V are found through the block table, and Triton gives half of the stages to its loads: from 5 on the next
    # tile's K and V are copied while this one is computed.
    stages: int

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.keys} keys, {self.warps} warps, {self.stages} stages"


# By the larger of K's and V's dims, rounded up to a power of two.
PREFILL = {
    64: Launch(128, 64, 8, 5),
    128: Launch(128, 64, 8, 5),
    256: Launch(64, 16, 8, 5),
    512: Launch(32, 16, 4, 5),
}
# Those of PREFILL that differ on Hopper: before, products have no room for the queries of so many rows.
HOPPER = {256: Launch(128, 32, 8, 5)}
DECODE = {
    64: Launch(16, 64, 2, 5),
    128: Launch(16, 64, 2, 5),
    256: Launch(16, 32, 4, 5),
    512: Launch(16, 16, 4, 5),
}
# Those of DECODE that differ for a float8 cache, whose conversion takes registers: with these at most 168 a thread,
# where those of DECODE take all 255.
DECODE_FLOAT8 = {128: Launch(16, 32, 4, 5), 256: Launch(16, 16, 4, 5)}
# Of elements of 4 bytes, for which there is no room to copy ahead.
FLOAT32_STAGES = 2
MIN_DIM, MAX_DIM = min(PREFILL), max(PREFILL)
# Minimum number of rows and columns of a tensor core's product.
MIN_TILE = 16


def prefill_table() -> dict[int, Launch]:
    """Return the settings of prefill for the device that Triton compiles for."""
    return PREFILL | HOPPER if capability() == 90 else PREFILL


def decode_table(cached: torch.dtype) -> dict[int, Launch]:
    """Return the settings of decode for a cache of that dtype."""
    return DECODE | DECODE_FLOAT8 if cached == FLOAT8 else DECODE


def capability() -> int:
    """Return ten times the compute capability of the device that Triton compiles for; 0 in the interpreter."""
    if triton.knobs.runtime.interpret:
        return 0
    return _capability_of(triton.runtime.driver.active.get_current_device())


@cache
def _capability_of(device: int) -> int:
    return int(triton.runtime.driver.active.get_current_target().arch)


def launch_for(table: dict[int, Launch], query: Tensor, keys: Tensor, values: Tensor) -> Launch:
    """Return the settings for heads of these shapes."""
    group = query.shape[1] // keys.shape[2]
    return settings(table, max(keys.shape[3], values.shape[3]), group, query.dtype)


def settings(table: dict[int, Launch], dim: int, group: int, dtype: torch.dtype) -> Launch:
    """Return the settings for heads of a size; group: query heads of a KV head; dtype: of queries."""
    launch = table[max(MIN_DIM, triton.next_power_of_2(dim))]
    wide = dtype.itemsize // 2  # float32 takes twice the memory
    rows = max(MIN_TILE, launch.rows // wide, triton.next_power_of_2(group))
    stages = launch.stages if wide == 1 else FLOAT32_STAGES
    return launch._replace(rows=rows, keys=max(MIN_TILE, launch.keys // wide), stages=stages)
