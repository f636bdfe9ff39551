"""The size of the KV cache: as configured, or from the free memory."""

from collections.abc import Sequence

import torch

from engine_server.config import CacheConfig
from engine_server.contract.memory_shortage import MemoryShortage
from engine_server.modeling.device import Device
from engine_server.modeling.memory.cache_layout import FLOAT8, INT8, Layout
from engine_server.modeling.memory.memory_ledger import MemoryLedger

# The dtypes of a quantised cache by the setting's values.
QUANTISED = {"fp8": FLOAT8, "fp8_e4m3": FLOAT8, "int8": INT8}


def cache_dtype(config: CacheConfig, computing: torch.dtype, platform: Device) -> torch.dtype:
    """Return the dtype of K and V in the cache; `computing` is the model's.

    Raises ValueError for a dtype that the device does not support in a cache.
    """
    if config.cache_dtype == "auto":
        return computing
    dtype = QUANTISED[config.cache_dtype]
    platform.check_cache_dtype(dtype, config.cache_dtype)
    return dtype


def num_blocks(
    config: CacheConfig,
    layouts: Sequence[tuple[Layout, torch.dtype]],
    ledger: MemoryLedger,
    longest: int,
) -> int:
    """Return how many blocks fit, each for all kinds of attention; 0 for layers without a cache.

    layouts: of the models that use the same blocks, each with the dtype of its K and V. ledger: has all other parts.
    Raises ValueError, with both sizes, if one request of `longest` tokens does not fit.
    """
    if not layouts[0][0].shapes:
        return 0
    platform = ledger.platform
    block = sum(layout.block_bytes(config.block_size, dtype) for layout, dtype in layouts)
    count, setting, others = config.num_gpu_blocks_override, "num_gpu_blocks_override", ""
    if count is None:
        memory, setting = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if memory is None:
            memory, setting = ledger.cache_memory(config.gpu_memory_utilization), platform.cache_setting
            others = ledger.account()
        count = max(memory // block, 0)
    needed = -(-longest // config.block_size)
    if count < needed:
        sizes = MemoryShortage(needed * block >> 20, count * block >> 20, platform.device.type)
        raise ValueError(
            f"one request of max_model_len {longest} needs {needed} blocks of KV cache; there is room for {count}: "
            f"{sizes}. Lower max_model_len, or raise {setting}{others}"
        )
    return count
