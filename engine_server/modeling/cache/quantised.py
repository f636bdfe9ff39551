"""K and V in 8 bits, with a scale for each head of each token."""

import torch
from torch import Tensor

FLOAT8, INT8 = torch.float8_e4m3fn, torch.int8
# The dtypes of a quantised cache, which keeps a float32 scale for each head of each token beside, and the largest
# magnitude of each.
LARGEST = {FLOAT8: torch.finfo(FLOAT8).max, INT8: 127.0}
# The magnitude below which a row counts as zero.
SMALLEST = 1e-30


def quantised(given: Tensor, dtype: torch.dtype = FLOAT8) -> tuple[Tensor, Tensor]:
    """Return `given` [..., dim] in FLOAT8 or INT8 and its scales, float32 [..., 1].

    Each row is divided by its scale, which makes its largest magnitude that of the dtype.
    """
    scales = given.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST) / LARGEST[dtype]
    scaled = given / scales
    return (scaled if dtype.is_floating_point else scaled.round_()).to(dtype), scales
