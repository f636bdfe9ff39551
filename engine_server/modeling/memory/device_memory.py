"""What is free of a device's memory, and what is said where something doesn't fit."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

ADVICE = {  # where it doesn't fit
    "weights": "Take a smaller model or dtype, or more GPUs by tensor_parallel_size",
    "largest step": "Lower max_num_batched_tokens or max_num_seqs",
    "KV cache": "Lower gpu_memory_utilization, or what sets the cache's size",
}
logger = logging.getLogger(__name__)


@contextmanager
def taking(what: str, device: torch.device) -> Iterator[None]:
    """Tell the log how much of a GPU's memory is taken within. Raises ValueError where there isn't enough."""
    before = free_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        tried = ". ".join(str(error).split(". ")[:3])  # how much at last, of how much, and how much is free
        raise ValueError(
            f"{what}: more than the {before >> 20} MiB of {device} memory that were free. {tried}. {ADVICE[what]}"
        ) from error
    if device.type == "cuda":
        torch.cuda.empty_cache()
        left = free_memory(device)
        logger.info(
            "%s: %d MiB of GPU memory, and %d MiB for a while; %d MiB are left",
            what, (before - left) >> 20, passing_memory(device) >> 20, left >> 20,
        )  # fmt: skip


def free_memory(device: torch.device) -> int:
    """Bytes that nobody has taken."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()


def passing_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory that were needed at most within the latest `taking`, beyond what is kept."""
    return torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)


def memory_use(caches: Iterable[Tensor], device: torch.device) -> dict[str, int]:
    """Bytes of a GPU's memory as SchedulerStats has them, between two steps; nothing on another device."""
    if device.type != "cuda":
        return {}
    cached = sum(cache.untyped_storage().nbytes() for cache in caches)
    weights = torch.cuda.memory_allocated(device) - cached
    return {"weight_bytes": weights, "cache_bytes": cached, "free_bytes": free_memory(device)}


def free_host_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its control group if that is less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit_file, usage_file in CGROUP_LIMITS:
        if Path(limit_file).is_file() and (limit := Path(limit_file).read_text().strip()) != "max":
            stat = dict(
                line.split() for line in Path(usage_file).with_name("memory.stat").read_text().splitlines()
            )
            kinds = ("active_file", "inactive_file")  # of files that were read: usage until they are dropped
            dropped = sum(int(stat.get(f"total_{kind}", stat.get(kind, 0))) for kind in kinds)
            free = min(free, int(limit) - int(Path(usage_file).read_text()) + dropped)
    return max(free, 0)
