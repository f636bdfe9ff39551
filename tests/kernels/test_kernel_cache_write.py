"""Writing into the paged cache."""

import pytest
import torch

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import FLOAT8, quantised
from engine_server.modeling.kernels.cache_write import write_cache


@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim", "block_size", "dtype"),
    [
        (2, 64, 64, 16, torch.float32),
        (3, 80, 80, 32, torch.float16),
        (1, 192, 128, 48, torch.bfloat16),
        (40, 128, 96, 16, torch.bfloat16),  # more heads than one program writes
        (3, 64, 48, 16, FLOAT8),
    ],
)
def test_cache_write_kernel_writes_the_given_slots_alone(
    device: torch.device, heads: int, key_dim: int, value_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    given = torch.float32 if dtype == FLOAT8 else dtype  # no model computes in float8
    tokens, blocks = 7, 5
    # The layout of a model that computes q, k and v in one product: a token's heads are contiguous, tokens are not.
    joined = torch.randn(tokens, heads, key_dim + value_dim, device=device).to(given)
    joined[0, 0] = 0  # a row without a scale
    key, value = joined[..., :key_dim], joined[..., key_dim:]
    slots = torch.randperm(blocks * block_size, device=device)[:tokens]
    slots[2] = -1  # a padding token
    caches, expected = [], []
    for new in (key, value):
        cache = torch.randn(blocks, block_size, heads, new.shape[2], device=device).to(dtype)
        scales = torch.randn(*cache.shape[:3], 1, device=device) if dtype == FLOAT8 else None
        caches.append(Pages(cache, scales))
        # On the CPU: a GPU's division by a number in Python multiplies by its inverse.
        parts = quantised(new.cpu()) if dtype == FLOAT8 else (new,)
        for before, part in zip(caches[-1], parts, strict=False):
            after = before.to(torch.float32, copy=True)
            after.view(-1, *after.shape[2:])[slots[slots >= 0]] = part.to(device)[slots >= 0].float()
            expected.append(after)
    write_cache(*caches, key, value, slots.int())
    written = [part.float() for pages in caches for part in pages if part is not None]
    torch.testing.assert_close(written, expected, rtol=0, atol=0)
