"""Layout of the KV cache: its tensors and their use by the layers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.cache.quantised import LARGEST
from engine_server.modeling.cache.spec import FULL, CacheSpec, LayerShape, whole_kind

# In place of the kind and the tensor of a layer that doesn't attend.
NO_CACHE = -1
# Allocates zeros on a device: `Device.zeros`.
Zeros = Callable[[Sequence[int], torch.dtype], Tensor]


class Pages(NamedTuple):
    """K, or V, of the layers that share a tensor. The layout of a block is the backend's."""

    # [blocks, ..., dim]
    data: Tensor
    # float32 [blocks, ..., 1], of a quantised cache: see `quantised`.
    scales: Tensor | None = None


class Layout(NamedTuple):
    """The tensors of the cache, and the tensor that each layer uses.

    Kinds whose units hold the same, and whose layers have the same shapes in the same numbers, take their units from
    one pool. A unit belongs to one kind at a time, so the n-th layers of these kinds share a tensor, which has the
    units of their pool.
    """

    # Spec of each kind.
    specs: list[CacheSpec]
    # Number of each kind's pool. Pools are numbered in the order of their first kinds.
    pools: list[int]
    # Index into `specs` of each layer; NO_CACHE for one that doesn't attend.
    kinds: list[int]
    # Index into `shapes` of each layer; likewise.
    tensors: list[int]
    # Shape of each tensor.
    shapes: list[LayerShape]
    # Layers that read what an earlier one of the same kind has written.
    readers: frozenset[int] = frozenset()

    @property
    def num_pools(self) -> int:
        return len(set(self.pools))

    @property
    def whole_kind(self) -> int | None:
        """The kind that keeps the whole context, if there is one."""
        return whole_kind(self.specs)

    @property
    def tensor_kinds(self) -> list[int]:
        """One of the kinds that use each tensor."""
        kinds = dict(zip(self.tensors, self.kinds, strict=True))
        return [kinds[tensor] for tensor in range(len(self.shapes))]

    @property
    def tensor_pools(self) -> list[int]:
        """The number of each tensor's pool."""
        return [self.pools[kind] for kind in self.tensor_kinds]

    def unit_bytes(self, block_size: int, dtype: torch.dtype) -> list[int]:
        """Return the bytes of a unit of each pool in all its tensors."""
        sizes = [0] * self.num_pools
        for kind, shape in zip(self.tensor_kinds, self.shapes, strict=True):
            sizes[self.pools[kind]] += self.specs[kind].unit_bytes(shape, block_size, dtype)
        return sizes

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes by which another token lengthens what all layers keep."""
        one, two = (self.unit_bytes(block_size, dtype) for block_size in (1, 2))
        return sum(two[pool] - one[pool] for pool in self.pools)

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


def lay_out(layers: Sequence[LayerShape | None], longest: int) -> Layout:
    """Return the layout for `layers`, in order, whose requests have at most `longest` tokens.

    None stands for a layer that doesn't attend.
    """
    layers = [layer and layer._replace(spec=layer.spec.limited_to(longest)) for layer in layers]
    attending = [layer for layer in layers if layer is not None]
    specs = list(dict.fromkeys(layer.spec for layer in attending))
    kinds = [NO_CACHE if layer is None else specs.index(layer.spec) for layer in layers]
    # By kind: how many layers of each shape have K and V of their own.
    numbers: list[Counter[LayerShape]] = [Counter() for _ in specs]
    for kind, layer in zip(kinds, layers, strict=True):
        if layer is not None and layer.source is None:
            numbers[kind][layer._replace(spec=FULL)] += 1
    contents = [(spec.unit, own) for spec, own in zip(specs, numbers, strict=True)]
    distinct = [own for kind, own in enumerate(contents) if own not in contents[:kind]]
    pools = [distinct.index(own) for own in contents]
    tensors: dict[tuple[int, LayerShape, int], int] = {}
    uses: list[int] = []
    seen: Counter[LayerShape] = Counter()
    for kind, layer in zip(kinds, layers, strict=True):
        if layer is None:
            uses.append(NO_CACHE)
            continue
        if layer.source is not None:
            uses.append(uses[layer.source])
            continue
        number = (pools[kind], layer._replace(spec=FULL), seen[layer])
        uses.append(tensors.setdefault(number, len(tensors)))
        seen[layer] += 1
    readers = frozenset(
        number for number, layer in enumerate(layers) if layer is not None and layer.source is not None
    )
    return Layout(specs, pools, kinds, uses, [shape for _, shape, _ in tensors], readers)
