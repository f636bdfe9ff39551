"""Layout of the KV cache: its tensors and their use by the layers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.window import Window

FLOAT8, INT8 = torch.float8_e4m3fn, torch.int8
# The dtypes of a quantised cache, which keeps a float32 scale for each head of each token beside, and the largest
# magnitude of each.
LARGEST = {FLOAT8: torch.finfo(FLOAT8).max, INT8: 127.0}
# The magnitude below which a row counts as zero.
SMALLEST = 1e-30

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

    A block belongs to one kind of attention at a time, so layers of different kinds can share a tensor: the n-th layers
    of each kind do if their K and V have the same shape. All kinds take their blocks from the same pool.
    """

    # Window of each kind of attention.
    windows: list[Window | None]
    # Index into `windows` of each layer.
    kinds: list[int]
    # Index into `shapes` of each layer.
    tensors: list[int]
    # Shape of each tensor.
    shapes: list[LayerShape]
    # Layers that read what an earlier one of the same kind has written.
    readers: frozenset[int] = frozenset()

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of `block_size` tokens in all layers, K and V: a block of each kind."""
        scales = 2 * torch.float32.itemsize if dtype in LARGEST else 0
        heads = ((one.kv_heads, one.key_dim + one.value_dim) for one in self.shapes)
        token = sum(count * (dims * dtype.itemsize + scales) for count, dims in heads)
        return token * len(self.windows) * block_size

    def allocate(
        self, num_blocks: int, block_size: int, dtype: torch.dtype, zeros: Zeros, heads_first: bool = False
    ) -> tuple[list[Pages], list[Pages]]:  # fmt: skip
        """Return K and V of each tensor, zeroed.

        Their shape is [blocks, block size, kv heads, dim]; with heads_first [blocks, kv heads, block size, dim].
        """

        def pages(heads: int, dim: int) -> Pages:
            rows = (heads, block_size) if heads_first else (block_size, heads)
            data = zeros((num_blocks, *rows, dim), dtype)
            return Pages(data, zeros((num_blocks, *rows, 1), torch.float32) if dtype in LARGEST else None)

        keys = [pages(shape.kv_heads, shape.key_dim) for shape in self.shapes]
        return keys, [pages(shape.kv_heads, shape.value_dim) for shape in self.shapes]


def quantised(given: Tensor, dtype: torch.dtype = FLOAT8) -> tuple[Tensor, Tensor]:
    """Return `given` [..., dim] in FLOAT8 or INT8 and its scales, float32 [..., 1].

    Each row is divided by its scale, which makes its largest magnitude that of the dtype.
    """
    scales = given.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST) / LARGEST[dtype]
    scaled = given / scales
    return (scaled if dtype.is_floating_point else scaled.round_()).to(dtype), scales


def lay_out(layers: Sequence[LayerShape], longest: int) -> Layout:
    """Return the layout for `layers`, in order. A window that covers a request of `longest` tokens counts as none."""
    layers = [
        layer._replace(window=None) if layer.window and layer.window.size >= longest else layer
        for layer in layers
    ]
    windows = list(dict.fromkeys(layer.window for layer in layers))
    tensors: dict[tuple[LayerShape, int], int] = {}
    uses: list[int] = []
    seen: Counter[LayerShape] = Counter()
    for layer in layers:
        if layer.source is not None:
            uses.append(uses[layer.source])
            continue
        uses.append(tensors.setdefault((layer._replace(window=None), seen[layer]), len(tensors)))
        seen[layer] += 1
    kinds = [windows.index(layer.window) for layer in layers]
    readers = frozenset(number for number, layer in enumerate(layers) if layer.source is not None)
    return Layout(windows, kinds, uses, [shape for shape, _ in tensors], readers)
