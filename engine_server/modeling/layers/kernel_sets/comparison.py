"""The comparison of a kernel's results with those of a transformers module."""

import torch
from torch import Tensor


def same(found: Tensor, expected: Tensor, scale: float) -> bool:
    """Check that results differ by one rounding at most. scale: the size of terms that may cancel."""
    slack = max(1e-5, 2 * torch.finfo(expected.dtype).eps)
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol=slack, atol=scale * slack)
