"""Accounting of device memory while the engine starts: usage by stage, and advice if it runs out."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine_server.contract.memory_shortage import MemoryShortage
from engine_server.modeling.device import Device

# Advice for the error message of a stage that runs out of memory.
ADVICE = {
    "weights": "Use a smaller model or dtype, or more GPUs by tensor_parallel_size",
    "adapters": "Lower max_loras, max_lora_rank or max_prompt_adapters",
    "largest step": "Lower max_num_batched_tokens or max_num_seqs",
    "KV cache": "Lower gpu_memory_utilization, or the setting of the cache's size",
    "KV cache of drafts": "Lower gpu_memory_utilization, or the setting of the cache's size",
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
logger = logging.getLogger(__name__)


@contextmanager
def measured_memory(stage: str, platform: Device) -> Iterator[None]:
    """Log the device memory that a stage of ADVICE takes. Raises ValueError with sizes and advice if it runs out."""
    before = platform.free_memory()
    platform.reset_peak_memory()
    try:
        yield
    except torch.OutOfMemoryError as error:
        # The first three sentences: the failed allocation, the device's memory, and its free part.
        reason = ". ".join(str(error).split(". ")[:3])
        needed = before + max(0, failed_allocation(reason) - platform.free_memory())
        sizes = MemoryShortage(needed >> 20, before >> 20, platform.device.type)
        raise ValueError(f"{stage}: at least {sizes}. {reason}. {ADVICE[stage]}") from error
    platform.release_cached_memory()
    if (transient := platform.transient_memory()) is not None:
        left = platform.free_memory()
        logger.info(
            "%s: %d MiB of GPU memory, %d MiB more at its peak; %d MiB are left",
            stage, (before - left) >> 20, transient >> 20, left >> 20,
        )  # fmt: skip


def failed_allocation(reason: str) -> int:
    """Return the size in bytes of the allocation that failed, by torch's message; 0 if that is not known."""
    found = re.search(r"Tried to allocate ([\d.]+) ([KMG]iB)", reason)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0
