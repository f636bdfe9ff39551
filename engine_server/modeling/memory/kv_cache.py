"""The size of the KV cache: as configured, or from the free memory."""

import torch

from engine_server.config import CacheConfig
from engine_server.modeling.device import Device
from engine_server.modeling.memory.cache_layout import FLOAT8, Layout


def cache_dtype(config: CacheConfig, computing: torch.dtype, platform: Device) -> torch.dtype:
    """Return the dtype of K and V in the cache; `computing` is the model's.

    Raises ValueError for float8 on a device that cannot convert it.
    """
    if config.cache_dtype == "auto":
        return computing
    platform.check_float8(config.cache_dtype)
    return FLOAT8


def num_blocks(
    config: CacheConfig, layout: Layout, dtype: torch.dtype, platform: Device, longest: int
) -> int:
    """Return how many blocks fit, each for all kinds of attention; 0 for layers without a cache.

    Raises ValueError, with both sizes, if one request of `longest` tokens does not fit.
    """
    if not layout.shapes:
        return 0
    block = layout.block_bytes(config.block_size, dtype)
    count, setting = config.num_gpu_blocks_override, "num_gpu_blocks_override"
    if count is None:
        memory, setting = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if memory is None:
            memory, setting = (
                platform.cache_memory(config.gpu_memory_utilization),
                platform.cache_setting,
            )
        count = max(memory // block, 0)
    needed = -(-longest // config.block_size)
    if count < needed:
        raise ValueError(
            f"one request of max_model_len {longest} needs {needed} blocks of KV cache, {needed * block >> 20} MiB; "
            f"there is room for {count}, {count * block >> 20} MiB. Lower max_model_len, or raise {setting}"
        )
    return count
