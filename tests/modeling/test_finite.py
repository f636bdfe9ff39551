"""The check for NaN and infinities against torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_server.modeling.formats.finite import all_finite

VALUES = st.sampled_from(
    [0.0, -0.0, 1.5, -3.0, 65504.0, 1e-40, 3e38, 1e300, torch.inf, -torch.inf, torch.nan]
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(values=st.lists(VALUES, max_size=5), place=st.integers(0, 100), transposed=st.booleans())
def test_all_finite_agrees_with_torch(
    dtype: torch.dtype, values: list[float], place: int, transposed: bool
) -> None:
    tensor = torch.zeros(5, 21).to(dtype)
    tensor.view(-1)[place : place + len(values)] = torch.tensor(values, dtype=torch.float64).to(dtype)[
        : 105 - place
    ]
    tensor = tensor.t() if transposed else tensor
    assert all_finite(tensor) == bool(tensor.float().isfinite().all())


def test_tensor_without_elements_is_finite() -> None:
    assert all_finite(torch.zeros(0, 4))
