"""How many blocks the KV cache has: as asked for, or as the free memory allows."""

from pathlib import Path

import torch

from engine_server.engine.config import CacheConfig
from engine_server.modeling.cache_layout import FLOAT8, Layout

CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
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
    if config.num_gpu_blocks_override is not None:
        count = config.num_gpu_blocks_override
    else:
        memory = config.kv_cache_memory_bytes
        count = (free_memory(config, device) if memory is None else memory) // block
    needed = -(-longest // config.block_size)
    if count < needed:
        raise ValueError(
            f"one request of max_model_len {longest} needs {needed} blocks of KV cache, {needed * block >> 20} MiB; "
            f"there is room for {count}, {count * block >> 20} MiB. Lower max_model_len or raise kv_cache_memory_bytes"
        )
    return count


def free_memory(config: CacheConfig, device: torch.device) -> int:
    """Bytes for the cache, once the model is loaded and one full step was run."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        peak = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
        return int(free + cached - peak - total * (1 - config.gpu_memory_utilization))
    return min(free_host_memory() // CPU_SHARE, CPU_MOST)


def free_host_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its control group if that is less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit_file, usage_file in CGROUP_LIMITS:
        if Path(limit_file).is_file() and (limit := Path(limit_file).read_text().strip()) != "max":
            stat = dict(
                line.split() for line in Path(usage_file).with_name("memory.stat").read_text().splitlines()
            )
            kinds = (
                "active_file",
                "inactive_file",
            )  # files that were read count as usage until they are dropped
            dropped = sum(int(stat.get(f"total_{kind}", stat.get(kind, 0))) for kind in kinds)
            free = min(free, int(limit) - int(Path(usage_file).read_text()) + dropped)
    return max(free, 0)
