"""The platform of our Triton kernels, on a GPU or in Triton's interpreter, whose memory is the host's."""

import torch

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.layers.kernel_sets.kernel_set import KernelSet
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cuda import TritonPlatform
from engine_server.modeling.platform.interface import Platform


class InterpretedPlatform(CpuPlatform):
    """Triton's kernels on a CPU."""

    captures_graphs = True
    compiles_late = True
    samples_by_kernel = True
    batch_invariant = True

    def compiled_by(self) -> str:
        return "triton, interpreted"

    @property
    def module_kernels(self) -> KernelSet:
        from engine_server.modeling.layers.kernel_sets.triton import TRITON

        return TRITON

    @property
    def weight_layout(self) -> ProductTable:
        from engine_server.modeling.formats.triton_quantized import fuse_dequantisation

        return fuse_dequantisation

    @property
    def fixed_order_layout(self) -> ProductTable:
        from engine_server.modeling.formats.fixed_order import fix_order

        return fix_order

    def paged_attention(
        self, layout: Layout, pool_sizes: list[int], block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        from engine_server.modeling.attention.triton_backend import TritonAttention

        return TritonAttention(layout, pool_sizes, block_size, dtype, self, processors=1)


def kernel_platform(device: torch.device) -> Platform:
    """Return the platform of the kernels on a device; of a CPU: in the interpreter."""
    return TritonPlatform(device) if device.type == "cuda" else InterpretedPlatform()
