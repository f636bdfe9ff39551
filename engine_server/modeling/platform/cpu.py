"""CPUs: plain torch, and our C++ kernels where they are compiled."""

import logging
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.attention.native_backend import NativeAttention, NativeStepAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.formats.native import fix_order, native
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.graphs.captured_step import CapturedStep, StepPart
from engine_server.modeling.graphs.step_programs import StepPrograms
from engine_server.modeling.layers.fixed_order import check_rows
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.layers.kernel_sets.native import NATIVE
from engine_server.modeling.layers.kernel_sets.plain import CPU
from engine_server.modeling.native.library import kernels
from engine_server.modeling.platform.cpu_quota import available_cpus
from engine_server.modeling.platform.host_memory import free_host_memory
from engine_server.modeling.platform.interface import Platform

# Instruction sets that multiply a dtype, as torch.cpu.get_capabilities names them; any one is enough.
INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}
# By default the KV cache takes this share of the free memory, up to a limit in bytes.
CACHE_SHARE = 4
CACHE_LIMIT = 2 << 30
logger = logging.getLogger(__name__)


class CpuPlatform(Platform):
    """A CPU with plain torch."""

    asynchronous = False
    writes_scores = True
    cache_setting = "kv_cache_memory_bytes"

    def __init__(self, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008
        super().__init__(device)
        if "GOMP_SPINCOUNT" not in os.environ:
            logger.info(
                "torch was imported before engine_server, which therefore can't set GOMP_SPINCOUNT: "
                "OpenMP's threads spin for milliseconds"
            )
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(min(torch.get_num_threads(), available_cpus()))

    @property
    def module_kernels(self) -> KernelSet:
        return CPU

    @property
    def weight_layout(self) -> ProductTable:
        return pack

    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        return TorchAttention(layout, pool_sizes, block_size, dtype, self)

    def computing_dtype(self, weights: torch.dtype, asked: bool) -> torch.dtype:
        if asked or has_instructions(weights):
            return weights
        name = str(weights).removeprefix("torch.")
        logger.warning(
            "this CPU has no instructions for %s: the model runs in float32, which is faster and takes twice the "
            "memory; --dtype %s keeps the weights' dtype", name, name,
        )  # fmt: skip
        return torch.float32

    def check_cache_dtype(self, dtype: torch.dtype, setting: str) -> None:
        """Do nothing: every CPU supports all of them."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate zeroed memory, whose pages the kernel clears at their first write: clearing 2 GiB takes seconds.

        Huge pages, where the kernel has them, are cleared faster, and long contexts are read faster from them.
        """
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)

    def to_device(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).clone()

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype)

    def free_memory(self) -> int:
        return free_host_memory()

    def cache_memory(self, utilization: float, reserved: int, with_states: bool) -> int:
        """Return a share of the free memory; `utilization` and `reserved` apply to GPUs alone."""
        return min(free_host_memory() // CACHE_SHARE, (1 + with_states) * CACHE_LIMIT)

    def reset_peak_memory(self) -> None:
        """Do nothing: the peak is not measured."""

    def transient_memory(self) -> int | None:
        return None

    def release_cached_memory(self) -> None:
        """Do nothing: torch caches no CPU memory."""

    def memory_stats(self, caches: Iterable[Tensor]) -> dict[str, int]:
        return {}

    def synchronize(self) -> None:
        """Do nothing: work is done when a call returns."""

    def record_event(self, timed: bool = False) -> torch.Event | None:
        return None

    def process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))  # all ranks share this CPU
        return distributed.ProcessGroupGloo(store, rank, size, timeout)


class NativePlatform(CpuPlatform):
    """A CPU for which our C++ kernels were compiled."""

    captures_graphs = True
    captures_any_step = True
    batch_invariant = True

    def compiled_by(self) -> str:
        return f"C++, {kernels().level}, {torch.get_num_threads()} threads"

    def capture(self, part: StepPart) -> CapturedStep:
        return StepPrograms(part)

    @property
    def module_kernels(self) -> KernelSet:
        return NATIVE

    @property
    def weight_layout(self) -> ProductTable:
        return native

    @property
    def fixed_order_layout(self) -> ProductTable:
        return fix_order

    def check_fixed_order(self, model: nn.Module) -> None:
        check_rows(model)

    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        return NativeAttention(layout, pool_sizes, block_size, dtype, self)

    def step_attention(self) -> AttentionBackend:
        return NativeStepAttention(self.writes_scores)

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if logits.dtype != torch.float32 or logits.stride(1) != 1:
            return super().likeliest(logits)
        largest, tokens = logits.new_empty(len(logits)), logits.new_empty(len(logits), dtype=torch.int64)
        kernels().likeliest(
            tokens.data_ptr(), largest.data_ptr(), logits.data_ptr(), *logits.shape, logits.stride(0)
        )
        return largest, tokens


def has_instructions(dtype: torch.dtype) -> bool:
    """Return True if this CPU multiplies `dtype` natively; otherwise products are several times slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return dtype == torch.float32 or any(capabilities.get(name) for name in INSTRUCTIONS[dtype])
