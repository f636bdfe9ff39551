"""The platform interface: everything that depends on the kind of device or on compiled kernels."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.formats.weight_format import WeightLayout
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.memory.cache_layout import Layout


class Platform(ABC):
    """One rank's device with the kernels that can run on it. Two models may share one."""

    # The device computes asynchronously, so steps can overlap.
    asynchronous: ClassVar[bool]
    # Decode steps can be captured as CUDA graphs, since none of our kernels needs the host.
    captures_graphs: ClassVar[bool] = False
    # Tokens are drawn by kernels/sampling.py, which a graph can capture.
    samples_by_kernel: ClassVar[bool] = False
    # Kernels with results bitwise independent of batch composition are available.
    batch_invariant: ClassVar[bool] = False
    # Attention in 16 bits is faster with its scores written to memory than by torch's fused kernel.
    writes_scores: ClassVar[bool] = False
    # The setting to raise if the KV cache is too small.
    cache_setting: ClassVar[str]

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # Kernels

    @property
    @abstractmethod
    def module_kernels(self) -> KernelSet:
        """Return the kernels for norms, gates and rotations from which the passes over a model choose."""

    @property
    @abstractmethod
    def weight_layout(self) -> WeightLayout:
        """Return the layout in which linear layers multiply fastest."""

    @property
    def fixed_order_layout(self) -> WeightLayout:
        """Return the layout whose products are bitwise independent of batch composition."""
        raise TypeError(
            f"{type(self).__name__} has no products that are bitwise independent of batch composition"
        )

    @abstractmethod
    def paged_attention(
        self, layout: Layout, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        """Allocate a KV cache of `dtype` and return its attention backend."""

    @abstractmethod
    def computing_dtype(self, weights: torch.dtype, asked: bool) -> torch.dtype:
        """Return the dtype to compute in; `asked`: `weights` comes from the user, not from the model's files."""

    @abstractmethod
    def check_float8(self, setting: str) -> None:
        """Raise ValueError, naming `setting`, if this device cannot convert float8."""

    # Memory

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate a zeroed tensor on the device."""

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
    def cache_memory(self, utilization: float) -> int:
        """Return the bytes for the KV cache, once weights are loaded and the largest step has run.

        utilization: share of the device memory to use, `gpu_memory_utilization`.
        """

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Start a measurement of `transient_memory`."""

    @abstractmethod
    def transient_memory(self) -> int | None:
        """Return the peak since `reset_peak_memory` minus the allocated memory, in bytes; None if not measured."""

    @abstractmethod
    def release_cached_memory(self) -> None:
        """Return memory that the allocator keeps for reuse to the device."""

    @abstractmethod
    def memory_stats(self, caches: Iterable[Tensor]) -> dict[str, int]:
        """Return the memory fields of SchedulerStats in bytes; empty if the device has no separate memory."""

    # Time

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device. Raises torch.AcceleratorError if it has failed."""

    @abstractmethod
    def record_event(self, timed: bool = False) -> torch.Event | None:
        """Record an event after all launched work; None if work is complete when a call returns."""

    # Load

    @abstractmethod
    def follow_load(self) -> None:
        """Adapt to the load of the host's CPUs. To be called every step."""

    # Ranks

    @abstractmethod
    def process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """Return a group of torch.distributed for collectives, without torch's global state.

        store: a torch.distributed store that all `size` ranks of the group share.
        """
