"""The platform of a GPU's kernels in Triton's interpreter, whose memory is the host's."""

import torch

from engine_server.modeling.attention.interface import AttentionBackend
from engine_server.modeling.layers.fused_modules import Kernels
from engine_server.modeling.memory.cache_layout import Layout
from engine_server.modeling.platform.cpu import CpuPlatform


class InterpretedPlatform(CpuPlatform):
    """Triton's kernels on a CPU."""

    captures_graphs = True
    samples_by_kernel = True
    batch_invariant = True

    @property
    def module_kernels(self) -> Kernels:
        from engine_server.modeling.layers.triton_modules import TRITON

        return TRITON

    def paged_attention(
        self, layout: Layout, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> AttentionBackend:
        from engine_server.modeling.attention.triton_backend import TritonAttention

        return TritonAttention(layout, num_blocks, block_size, dtype, self, processors=1)
