"""Accounting of device memory while the engine starts: how much each stage takes, and advice where it is too little."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine_server.modeling.device import Device

# Advice by stage, for the message when it runs out of memory.
ADVICE = {
    "weights": "Take a smaller model or dtype, or more GPUs by tensor_parallel_size",
    "largest step": "Lower max_num_batched_tokens or max_num_seqs",
    "KV cache": "Lower gpu_memory_utilization, or what sets the cache's size",
}
logger = logging.getLogger(__name__)


@contextmanager
def measured_memory(stage: str, platform: Device) -> Iterator[None]:
    """Log the device memory that a stage of ADVICE takes. Raises ValueError with sizes and advice if it runs out."""
    before = platform.free_memory()
    platform.reset_peak_memory()
    try:
        yield
    except torch.OutOfMemoryError as error:
        # The first three sentences: the allocation that failed, the device's memory, and how much of it is free.
        reason = ". ".join(str(error).split(". ")[:3])
        raise ValueError(
            f"{stage}: more than the {before >> 20} MiB of {platform.device} memory that were free. {reason}. "
            f"{ADVICE[stage]}"
        ) from error
    platform.release_cached_memory()
    if (transient := platform.transient_memory()) is not None:
        left = platform.free_memory()
        logger.info(
            "%s: %d MiB of GPU memory, %d MiB more at its peak; %d MiB are left",
            stage, (before - left) >> 20, transient >> 20, left >> 20,
        )  # fmt: skip
