"""The KV cache's tensors, and which of them each layer uses."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.attention import LayerShape


class Layout(NamedTuple):
    """Which tensors there are, and which of them each layer uses.

    A block belongs to one kind of attention at a time, so layers of different kinds can share a tensor: the n-th
    of each kind do, where what they keep has one shape. Whichever kind needs a block takes it from the same pool.
    """

    windows: list[int | None]  # of each kind
    kinds: list[int]  # of each layer
    tensors: list[int]  # of each layer
    shapes: list[LayerShape]  # of each tensor

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block of tokens in all layers, K and V: a block id for each kind."""
        elements = sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in self.shapes)
        return elements * len(self.windows) * block_size * dtype.itemsize

    def allocate(
        self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[list[Tensor], list[Tensor]]:
        """K and V of each tensor: [blocks, block size, kv heads, dim], zeros."""

        def cache(shape: LayerShape, dim: int) -> Tensor:
            return torch.zeros(num_blocks, block_size, shape.kv_heads, dim, dtype=dtype, device=device)

        keys = [cache(shape, shape.key_dim) for shape in self.shapes]
        return keys, [cache(shape, shape.value_dim) for shape in self.shapes]


def lay_out(layers: Sequence[LayerShape], longest: int) -> Layout:
    """The layout for `layers`, in order; a window that no request of `longest` tokens leaves is none."""
    layers = [
        layer._replace(window=None) if layer.window and layer.window >= longest else layer for layer in layers
    ]
    windows = list(dict.fromkeys(layer.window for layer in layers))
    tensors: dict[tuple[LayerShape, int], int] = {}
    uses = []
    seen: Counter[LayerShape] = Counter()
    for layer in layers:
        uses.append(tensors.setdefault((layer._replace(window=None), seen[layer]), len(tensors)))
        seen[layer] += 1
    kinds = [windows.index(layer.window) for layer in layers]
    return Layout(windows, kinds, uses, [shape for shape, _ in tensors])
