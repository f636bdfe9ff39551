"""Low-rank updates by each row's adapter, against the formula in float64."""

import pytest
import torch
from low_rank_tables import SHAPES, SLOTS, TOLERANCE, check

from engine_server.modeling.kernels.low_rank import add_low_rank


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_each_row_gets_the_update_of_its_adapter(
    device: torch.device, shape: tuple[int, int], slots: list[int], dtype: torch.dtype
) -> None:
    check(add_low_rank, device, shape, slots, dtype)
