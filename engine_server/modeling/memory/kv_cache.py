"""How many blocks the KV cache has: as asked for, or as the free memory allows."""

import torch

from engine_server.config import CacheConfig
from engine_server.modeling.memory.cache_layout import FLOAT8, Layout
from engine_server.modeling.memory.device_memory import free_memory, passing_memory

FLOAT8_CAPABILITY = (8, 9)  # of a GPU that converts it
CPU_SHARE = 4  # without a setting, the cache takes this part of what is free, and at most CPU_MOST
CPU_MOST = 2 << 30


def cache_dtype(config: CacheConfig, computing: torch.dtype, device: torch.device) -> torch.dtype:
    """What K and V are kept in, beside the dtype that the model computes in. Raises ValueError where a GPU can't."""
    if config.cache_dtype == "auto":
        return computing
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
        raise ValueError(
            f"kv_cache_dtype is {config.cache_dtype}, for which {torch.cuda.get_device_name(device)} is too old: "
            "it takes compute capability 8.9 or more"
        )
    return FLOAT8


def num_blocks(
    config: CacheConfig, layout: Layout, dtype: torch.dtype, device: torch.device, longest: int
) -> int:
    """How many blocks of tokens fit, whatever the kinds; at least one request of `longest` tokens must.

    Raises ValueError with both sizes.
    """
    if not layout.shapes:
        return 0
    block = layout.block_bytes(config.block_size, dtype)
    count, setting = config.num_gpu_blocks_override, "num_gpu_blocks_override"
    if count is None:
        memory, setting = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if memory is None:
            memory, setting = room(config, device)
        count = max(memory // block, 0)
    needed = -(-longest // config.block_size)
    if count < needed:
        raise ValueError(
            f"one request of max_model_len {longest} needs {needed} blocks of KV cache, {needed * block >> 20} MiB; "
            f"there is room for {count}, {count * block >> 20} MiB. Lower max_model_len, or raise {setting}"
        )
    return count


def room(config: CacheConfig, device: torch.device) -> tuple[int, str]:
    """Bytes for the cache, once the model is loaded and the largest step was run; the setting to raise for more."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        spared = passing_memory(device) + int(total * (1 - config.gpu_memory_utilization))
        return free_memory(device) - spared, "gpu_memory_utilization"
    return min(free_memory(device) // CPU_SHARE, CPU_MOST), "kv_cache_memory_bytes"
