"""CUDA GPUs: plain torch, and our Triton kernels where Triton can compile."""

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.cache.quantised import INT8
from engine_server.modeling.formats.products import ProductTable, as_loaded
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.kernel_sets.plain import NO_KERNELS
from engine_server.modeling.platform.interface import Platform

# The oldest compute capability that converts float8.
FLOAT8_CAPABILITY = (8, 9)
logger = logging.getLogger(__name__)


class CudaPlatform(Platform):
    """A GPU with plain torch."""

    asynchronous = True
    cache_setting = "gpu_memory_utilization"

    @property
    def module_kernels(self) -> KernelSet:
        return NO_KERNELS

    @property
    def weight_layout(self) -> ProductTable:
        return as_loaded

    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        return TorchAttention(layout, pool_sizes, block_size, dtype, self)

    def computing_dtype(self, weights: torch.dtype, asked: bool) -> torch.dtype:
        if weights != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False):
            return weights
        logger.warning(
            "%s has no bfloat16: the model runs in float16", torch.cuda.get_device_name(self.device)
        )
        return torch.float16

    def check_cache_dtype(self, dtype: torch.dtype, setting: str) -> None:
        if dtype == INT8:
            raise ValueError(
                f"kv_cache_dtype is {setting}, which needs a CPU: on a GPU it can be auto or fp8"
            )
        if torch.cuda.get_device_capability(self.device) < FLOAT8_CAPABILITY:
            raise ValueError(
                f"kv_cache_dtype is {setting}, which {torch.cuda.get_device_name(self.device)} doesn't support: "
                "it needs compute capability 8.9 or higher"
            )

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def to_device(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).pin_memory().to(self.device, non_blocking=True)

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def free_memory(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def cache_memory(self, utilization: float, reserved: int, with_states: bool) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return free - reserved - int(total * (1 - utilization))

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def transient_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)

    def release_cached_memory(self) -> None:
        torch.cuda.empty_cache()

    def memory_stats(self, caches: Iterable[Tensor]) -> dict[str, int]:
        cached = sum(cache.untyped_storage().nbytes() for cache in caches)
        weights = torch.cuda.memory_allocated(self.device) - cached
        return {"weight_bytes": weights, "cache_bytes": cached, "free_bytes": self.free_memory()}

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def record_event(self, timed: bool = False) -> torch.Event | None:
        event = torch.Event(self.device, enable_timing=timed)
        event.record()
        return event

    def process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        torch.cuda.set_device(self.device)
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return distributed.ProcessGroupNCCL(store, rank, size, options)


class TritonPlatform(CudaPlatform):
    """A GPU for which Triton compiles our kernels."""

    captures_graphs = True
    compiles_late = True
    samples_by_kernel = True
    batch_invariant = True

    def compiled_by(self) -> str:
        import triton

        major, minor = torch.cuda.get_device_capability(self.device)
        return f"triton {triton.__version__}, sm_{major}{minor}"

    @property
    def module_kernels(self) -> KernelSet:
        from engine_server.modeling.layers.kernel_sets.triton import TRITON  # imports Triton

        return TRITON

    @property
    def weight_layout(self) -> ProductTable:
        from engine_server.modeling.formats.triton_quantized import fuse_dequantisation  # imports Triton

        return fuse_dequantisation

    @property
    def fixed_order_layout(self) -> ProductTable:
        from engine_server.modeling.formats.fixed_order import fix_order  # imports Triton

        return fix_order

    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        from engine_server.modeling.attention.triton_backend import TritonAttention  # imports Triton

        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        return TritonAttention(layout, pool_sizes, block_size, dtype, self, processors)
