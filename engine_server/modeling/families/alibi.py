"""ALiBi's slopes, of bloom and falcon."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def slopes(build: Callable[..., Tensor], heads: int, scale: float, device: torch.device) -> Tensor:
    """Return ALiBi's slopes [heads] (Press et al., ICLR '22): one tensor for all layers, which then share masks."""
    return build(torch.ones(1, 2, device=device), heads, torch.float32)[:, 0, 1] * scale
