"""A device's memory, time and collectives, without anything that is computed on it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import Tensor


class Device(ABC):
    """One rank's device, which torch knows as `device`. Two models may share one."""

    # The device computes on its own while the host goes on, so steps can overlap.
    asynchronous: ClassVar[bool]
    # Attention in 16 bits is faster with its scores written to memory than by torch's fused kernel.
    writes_scores: ClassVar[bool] = False
    # The setting to raise where the KV cache is too small.
    cache_setting: ClassVar[str]

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def check_cache_dtype(self, dtype: torch.dtype, setting: str) -> None:
        """Raise ValueError, naming `setting`, if this device does not support a KV cache of this quantised dtype."""

    # Memory

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate zeros on the device."""

    @abstractmethod
    def to_device(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Copy numbers of the host to the device without waiting for the device."""

    @abstractmethod
    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate host memory, uninitialised, that the device can copy from without waiting."""

    @abstractmethod
    def free_memory(self) -> int:
        """Return the device memory in bytes that is neither allocated nor reserved."""

    @abstractmethod
    def cache_memory(self, utilization: float, reserved: int, with_states: bool) -> int:
        """Return the bytes for the KV cache, once everything else is allocated but `reserved` bytes.

        utilization: share of the device memory to use, `gpu_memory_utilization`. with_states: the states of recurrent
        layers take a part of them.
        """

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Start a measurement of `transient_memory`."""

    @abstractmethod
    def transient_memory(self) -> int | None:
        """Return the peak bytes since `reset_peak_memory` beyond what is still allocated; None if not measured."""

    @abstractmethod
    def release_cached_memory(self) -> None:
        """Return memory that the allocator keeps for reuse."""

    @abstractmethod
    def memory_stats(self, caches: Iterable[Tensor]) -> dict[str, int]:
        """Return the memory fields of SchedulerStats in bytes; empty where the device has no memory of its own."""

    # Time

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device. Raises torch.AcceleratorError if it has failed."""

    @abstractmethod
    def record_event(self, timed: bool = False) -> torch.Event | None:
        """Record an event behind all work that the device was given; None where work is done when a call returns."""

    # Ranks

    @abstractmethod
    def process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """Return a group of torch.distributed for collectives, without torch's global state.

        store: a torch.distributed store that all `size` ranks of the group share.
        """
