"""Linear layers with fixed tiles: correct, and each row bitwise independent of the others."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_server.modeling.kernels.matmul import linear

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_kernel_equals_torch(device: torch.device, dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    for shape, columns in [((1, 1, 8), 8), ((5, 100), 70), ((1, 140, 33), 130), ((1100, 16), 3)]:
        x, weight = (
            torch.randn(shape).to(dtype),
            (torch.randn(columns, shape[-1]) / shape[-1] ** 0.5).to(dtype),
        )
        added = torch.randn(columns).to(dtype) if bias else None
        out = linear(x.to(device), weight.to(device), added.to(device) if bias else None)
        assert out.dtype == dtype
        expected = F.linear(x.float(), weight.float(), added.float() if bias else None)
        torch.testing.assert_close(out.cpu().float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@settings(max_examples=3, derandomize=True)  # Triton's interpreter is slow
@given(st.integers(1, 150), st.data())
def test_linear_kernel_is_bitwise_independent_of_other_rows(device: torch.device, rows: int, data) -> None:
    torch.manual_seed(0)
    row, weight = torch.randn(1, 90, device=device), torch.randn(70, 90, device=device)
    alone = linear(row, weight)
    batch = torch.randn(rows, 90, device=device)
    place = data.draw(st.integers(0, rows - 1))
    batch[place] = row
    assert torch.equal(linear(batch, weight)[place], alone[0])
