"""The KV cache's tensors, and which of them each layer uses."""

import math
import mmap
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.attention.interface import LayerShape, Pages

FLOAT8 = torch.float8_e4m3fn  # of a cache that keeps a scale for each token's head beside
LARGEST, SMALLEST = torch.finfo(FLOAT8).max, 1e-30  # magnitudes: what FLOAT8 goes up to, and what counts as 0


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
        scales = 2 * torch.float32.itemsize if dtype == FLOAT8 else 0
        heads = ((one.kv_heads, one.key_dim + one.value_dim) for one in self.shapes)
        token = sum(count * (dims * dtype.itemsize + scales) for count, dims in heads)
        return token * len(self.windows) * block_size

    def allocate(
        self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, heads_first: bool = False
    ) -> tuple[list[Pages], list[Pages]]:  # fmt: skip
        """K and V of each tensor, zeros: [blocks, block size, kv heads, dim], or kv heads before block size."""

        def pages(heads: int, dim: int) -> Pages:
            places = (heads, block_size) if heads_first else (block_size, heads)
            data = blank((num_blocks, *places, dim), dtype, device)
            scaled = dtype == FLOAT8
            return Pages(data, blank((num_blocks, *places, 1), torch.float32, device) if scaled else None)

        keys = [pages(shape.kv_heads, shape.key_dim) for shape in self.shapes]
        return keys, [pages(shape.kv_heads, shape.value_dim) for shape in self.shapes]


def blank(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. The host's memory is taken page by page as it is written: clearing 2 GiB at once takes seconds."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def quantised(given: Tensor) -> tuple[Tensor, Tensor]:
    """FLOAT8 [..., dim], and float32 [..., 1] to multiply it by: each row's largest magnitude becomes FLOAT8's own."""
    scales = given.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST) / LARGEST
    return (given / scales).to(FLOAT8), scales


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
