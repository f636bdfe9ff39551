"""Launch settings of the grouped products of a mixture of experts, by the mean number of rows of an expert."""

from typing import NamedTuple

import torch

from engine_server.modeling.kernels.launch import capability


class ExpertLaunch(NamedTuple):
    """Settings of one grouped product, whose tiles have elements of 2 bytes."""

    # Choices of a tile.
    rows: int
    # Rows of an expert's weight per tile: half of them are of the gate in a product with one.
    columns: int
    # Inputs per step of the sum.
    depth: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.columns} columns, {self.depth} inputs, {self.warps} warps, "
            f"{self.stages} stages"
        )


# By the largest mean number of choices of an expert. Few are bound by the weights' bandwidth: small tiles, and many
# bytes in flight.
DENSE = {
    4: ExpertLaunch(16, 64, 128, 4, 3),
    16: ExpertLaunch(32, 128, 64, 4, 4),
    32: ExpertLaunch(64, 128, 64, 4, 3),
    64: ExpertLaunch(64, 128, 64, 4, 3),
    256: ExpertLaunch(128, 128, 64, 8, 3),
}
# Those of DENSE that differ on Hopper, which has more shared memory, and whose products read both factors from it. All
# for Hopper were chosen on an H200 by `python -m benchmarks.gpu.mixture`.
HOPPER = {16: ExpertLaunch(32, 128, 128, 4, 3), 256: ExpertLaunch(128, 256, 64, 8, 3)}
# Of weights that are dequantised in registers.
QUANTISED = {
    4: ExpertLaunch(16, 128, 128, 4, 3),
    16: ExpertLaunch(32, 128, 128, 4, 3),
    32: ExpertLaunch(32, 64, 128, 4, 3),
    64: ExpertLaunch(64, 64, 64, 4, 3),
    256: ExpertLaunch(128, 128, 64, 8, 3),
}
# Those of QUANTISED that differ on Hopper.
HOPPER_QUANTISED = {size: ExpertLaunch(64, 128, 64, 4, 3) for size in (32, 64)}
# For any number of rows: a row's product is the same in each.
INVARIANT = ExpertLaunch(64, 64, 64, 4, 3)
# Of elements of 4 bytes, for which there is no room to copy ahead.
FLOAT32_STAGES = 2


def launch_for(
    choices: int, experts: int, dtype: torch.dtype, quantised: bool, invariant: bool
) -> ExpertLaunch:
    """Return the settings for so many choices in a step; dtype: of the values."""
    if invariant:
        launch = INVARIANT
    else:
        table, on_hopper = (QUANTISED, HOPPER_QUANTISED) if quantised else (DENSE, HOPPER)
        if capability() == 90:
            table = table | on_hopper
        launch = table[min((size for size in table if choices <= size * experts), default=max(table))]
    if dtype.itemsize == 2:
        return launch
    return launch._replace(columns=min(launch.columns, 64), depth=launch.depth // 4, stages=FLOAT32_STAGES)
