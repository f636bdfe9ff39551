"""RMSNorm, against the formula in float32."""

import pytest
import torch
from torch import Tensor

from engine_server.modeling.kernels.norm import rms_norm

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SHAPES = [(1, 1, 64), (1, 5, 80), (1, 3, 4096), (7, 1), (1, 33, 100), (2, 2, 5000)]


def expected(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    x = x.float()
    return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * (weight.float() + offset)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_kernel_equals_torch(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(shape).to(dtype) / 30 for _ in range(2))  # so small that eps matters
    weight = torch.randn(shape[-1]).to(dtype)
    given = [tensor.to(device) for tensor in (x, residual, weight)]
    close = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype], "check_dtype": False}
    for offset in (0.0, 1.0):
        unchanged, normed = rms_norm(given[0], given[2], 1e-3, offset)
        assert unchanged is given[0]
        assert normed.dtype == dtype
        torch.testing.assert_close(normed.cpu(), expected(x, weight, offset), **close)
        total, normed = rms_norm(given[0], given[2], 1e-3, offset, given[1])
        torch.testing.assert_close(
            total.cpu(), x + residual, **close
        )  # the interpreter truncates to bfloat16
        torch.testing.assert_close(normed.cpu(), expected(total.cpu(), weight, offset), **close)


def test_norm_kernel_supports_strided_rows(device: torch.device) -> None:
    """Heads of queries within a product of queries, keys and values; and heads before tokens."""
    torch.manual_seed(0)
    joined, weight = torch.randn(1, 5, 6, 96), torch.randn(96)
    for x in (
        joined[:, :, 1:4],
        joined[:, :, 1:4].transpose(1, 2),
        joined[..., 0, :],
        joined.transpose(1, 3),
    ):
        own = weight[: x.shape[-1]]
        normed = rms_norm(x.to(device), own.to(device), 1e-3)[1].cpu()
        torch.testing.assert_close(normed, expected(x, own, 0.0), atol=1e-6, rtol=1e-6)
