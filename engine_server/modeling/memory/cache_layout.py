"""Layout of the KV cache: its tensors and their use by the layers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.memory.quantised import LARGEST
from engine_server.modeling.window import Window

# Allocates zeros on a device: `Device.zeros`.
Zeros = Callable[[Sequence[int], torch.dtype], Tensor]


class LayerShape(NamedTuple):
    """Shape of what one attention layer keeps of each token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    # Only the tokens of the window are visible.
    window: Window | None = None
    # The earlier layer whose K and V this one reads; None: it has its own.
    source: int | None = None


class Pages(NamedTuple):
    """K, or V, of the layers that share a tensor. The layout of a block is the backend's."""

    # [blocks, ..., dim]
    data: Tensor
    # float32 [blocks, ..., 1], of a quantised cache: see `quantised`.
    scales: Tensor | None = None


class Layout(NamedTuple):
    """The tensors of the cache, and the tensor that each layer uses.

    Kinds of attention whose layers have the same shapes, in the same numbers, take their blocks from one pool. A block
    belongs to one kind at a time, so the n-th layers of these kinds share a tensor, which has the blocks of their pool.
    """

    # Window of each kind of attention.
    windows: list[Window | None]
    # Number of each kind's pool. Pools are numbered in the order of their first kinds.
    pools: list[int]
    # Index into `windows` of each layer.
    kinds: list[int]
    # Index into `shapes` of each layer.
    tensors: list[int]
    # Shape of each tensor.
    shapes: list[LayerShape]
    # Layers that read what an earlier one of the same kind has written.
    readers: frozenset[int] = frozenset()

    @property
    def num_pools(self) -> int:
        return len(set(self.pools))

    @property
    def tensor_pools(self) -> list[int]:
        """The number of each tensor's pool."""
        pools = {tensor: self.pools[kind] for kind, tensor in zip(self.kinds, self.tensors, strict=True)}
        return [pools[tensor] for tensor in range(len(self.shapes))]

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> list[int]:
        """Return the bytes of a block of each pool: `block_size` tokens in all its tensors, K and V."""
        scales = 2 * torch.float32.itemsize if dtype in LARGEST else 0
        sizes = [0] * self.num_pools
        for pool, shape in zip(self.tensor_pools, self.shapes, strict=True):
            dims = shape.key_dim + shape.value_dim
            sizes[pool] += block_size * shape.kv_heads * (dims * dtype.itemsize + scales)
        return sizes

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of a token in all layers, K and V."""
        sizes = self.block_bytes(1, dtype)
        return sum(sizes[pool] for pool in self.pools)

    def allocate(
        self,
        pool_sizes: list[int],
        block_size: int,
        dtype: torch.dtype,
        zeros: Zeros,
        heads_first: bool = False,
    ) -> tuple[list[Pages], list[Pages]]:
        """Return K and V of each tensor, zeroed; pool_sizes: the number of blocks of each pool.

        Their shape is [blocks, block size, kv heads, dim]; with heads_first [blocks, kv heads, block size, dim].
        """

        def pages(pool: int, heads: int, dim: int) -> Pages:
            rows = (heads, block_size) if heads_first else (block_size, heads)
            shape = pool_sizes[pool], *rows
            scales = zeros((*shape, 1), torch.float32) if dtype in LARGEST else None
            return Pages(zeros((*shape, dim), dtype), scales)

        tensors = list(zip(self.tensor_pools, self.shapes, strict=True))
        keys = [pages(pool, shape.kv_heads, shape.key_dim) for pool, shape in tensors]
        return keys, [pages(pool, shape.kv_heads, shape.value_dim) for pool, shape in tensors]


def lay_out(layers: Sequence[LayerShape], longest: int) -> Layout:
    """Return the layout for `layers`, in order. A window that covers a request of `longest` tokens counts as none."""
    layers = [
        layer._replace(window=None) if layer.window and layer.window.size >= longest else layer
        for layer in layers
    ]
    windows = list(dict.fromkeys(layer.window for layer in layers))
    kinds = [windows.index(layer.window) for layer in layers]
    # By kind: how many layers of each shape have K and V of their own.
    numbers: list[Counter[LayerShape]] = [Counter() for _ in windows]
    for kind, layer in zip(kinds, layers, strict=True):
        if layer.source is None:
            numbers[kind][layer._replace(window=None)] += 1
    distinct = [own for kind, own in enumerate(numbers) if own not in numbers[:kind]]
    pools = [distinct.index(own) for own in numbers]
    tensors: dict[tuple[int, LayerShape, int], int] = {}
    uses: list[int] = []
    seen: Counter[LayerShape] = Counter()
    for kind, layer in zip(kinds, layers, strict=True):
        if layer.source is not None:
            uses.append(uses[layer.source])
            continue
        number = (pools[kind], layer._replace(window=None), seen[layer])
        uses.append(tensors.setdefault(number, len(tensors)))
        seen[layer] += 1
    readers = frozenset(number for number, layer in enumerate(layers) if layer.source is not None)
    return Layout(windows, pools, kinds, uses, [shape for _, shape, _ in tensors], readers)
