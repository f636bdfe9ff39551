"""Writing into the paged cache."""

import pytest
import torch

from engine_server.modeling.kernels.cache_write import write_cache


@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim", "block_size", "dtype"),
    [
        (2, 64, 64, 16, torch.float32),
        (3, 80, 80, 32, torch.float16),
        (1, 192, 128, 48, torch.bfloat16),
        (40, 128, 96, 16, torch.bfloat16),  # more heads than one program takes
        (2, 64, 64, 16, torch.float8_e4m3fn),
    ],
)
def test_kernel_writes_where_it_is_told_and_nowhere_else(
    device: torch.device, heads: int, key_dim: int, value_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    given = dtype if dtype.itemsize > 1 else torch.float32  # no model computes in float8
    tokens, blocks = 7, 5
    # As a model has them that computes q, k and v in one product: the heads of a token lie together, tokens apart.
    joined = torch.randn(tokens, heads, key_dim + value_dim, device=device).to(dtype).to(given)
    key, value = joined[..., :key_dim], joined[..., key_dim:]
    slots = torch.randperm(blocks * block_size, device=device)[:tokens]
    slots[2] = -1  # a token that only fills a batch up
    caches = [torch.randn(blocks, block_size, heads, dim, device=device) for dim in (key_dim, value_dim)]
    keys, values = (cache.to(dtype) for cache in caches)
    expected = [keys.float(), values.float()]
    for cache, new in zip(expected, (key, value), strict=True):
        cache.view(-1, *cache.shape[2:])[slots[slots >= 0]] = new[slots >= 0].to(dtype).float()
    write_cache(keys, values, key, value, slots.int())
    assert torch.equal(keys.float(), expected[0])
    assert torch.equal(values.float(), expected[1])
