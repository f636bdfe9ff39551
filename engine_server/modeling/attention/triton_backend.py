"""Paged attention on a GPU by our Triton kernels, from the staged inputs of a step."""

import torch
from torch import Tensor

from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.attention.paged_attention import PagedAttention
from engine_server.modeling.cache.layout import Layout, Pages
from engine_server.modeling.device.interface import Device
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.cache_write import write_cache
from engine_server.modeling.kernels.head_write import write_heads
from engine_server.modeling.kernels.launch import MAX_DIM, decode_table, prefill_table, settings
from engine_server.modeling.kernels.work_list import WorkList, plan_work, spare_chunks


class TritonAttention(PagedAttention):
    """One K and one V tensor for each of the layout's: [blocks, block size, kv heads, dim]."""

    def __init__(
        self,
        layout: Layout,
        pool_sizes: list[int],
        block_size: int,
        dtype: torch.dtype,
        platform: Device,
        processors: int,
    ) -> None:
        """Allocate the cache. Raises UnsupportedModelError for heads that are too large.

        processors: multiprocessors of the GPU.
        """
        dim = max(max(shape.key_dim, shape.value_dim) for shape in layout.shapes)
        if dim > MAX_DIM:
            raise UnsupportedModelError(
                f"attention heads have {dim} dims, of which the kernels take {MAX_DIM} at most"
            )
        self.layout = layout
        self.keys, self.values = layout.allocate(pool_sizes, block_size, dtype, platform.zeros)
        self._processors = processors

    def describe(self, query_heads: int, dtype: torch.dtype) -> str:
        tables = {} if self.invariant else {"decode": decode_table(self.keys[0].data.dtype)}
        tables["prefill"] = prefill_table()
        heads = {(max(one.key_dim, one.value_dim), query_heads // one.kv_heads) for one in self.layout.shapes}
        parts = [
            f"{name} {dim}: {settings(table, dim, group, dtype)}"
            for name, table in tables.items()
            for dim, group in sorted(heads)
        ]
        return f"{super().describe(query_heads, dtype)}, {'; '.join(dict.fromkeys(parts))}"

    def begin(self, inputs: StepInputs) -> None:
        assert inputs.staged is not None
        self._step = inputs.staged
        self._work_lists: dict[tuple[Window | None, int], WorkList] = {}

    def write(self, layer: int, heads: Heads) -> Tensor:
        pending = heads.pending
        if pending.rotation is None:
            return super().write(layer, heads)
        query, key, value = with_unit_strides(heads.query, heads.key, heads.value)
        slots = self._step.slots[self.layout.kinds[layer]]
        return write_heads(
            *self._pages(layer), query, key, value, slots, pending.rotation, pending.query_norm, pending.key_norm
        )  # fmt: skip

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        slots = self._step.slots[self.layout.kinds[layer]]
        key, value = with_unit_strides(key, value)
        write_cache(*self._pages(layer), key, value, slots)

    def _pages(self, layer: int) -> tuple[Pages, Pages]:
        """Return K and V of a layer's cache."""
        tensor = self.layout.tensors[layer]
        return self.keys[tensor], self.values[tensor]

    def read(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        [query] = with_unit_strides(query)
        (keys, values), kind, step = self._pages(layer), self.layout.kinds[layer], self._step
        out = query.new_empty(*query.shape[:2], values.data.shape[-1])
        if len(step.prefills):
            prefill(out, query, keys, values, step.tables[kind], step.prefills, scoring, self.invariant)
        if len(step.decodes) and self.invariant:
            prefill(out, query, keys, values, step.tables[kind], step.decodes, scoring, self.invariant)
        elif len(step.decodes):
            work = self._work(scoring.window, keys.data.shape[2])
            decode(out, query, keys, values, step.tables[kind], step.decodes, scoring, work)
        return out

    def _work(self, window: Window | None, kv_heads: int) -> WorkList:
        """Return the step's work list for layers of this window and number of KV heads, which share it."""
        key = (window, kv_heads)
        if key not in self._work_lists:
            spare = spare_chunks(kv_heads, self._processors)
            self._work_lists[key] = plan_work(self._step.decodes, window, kv_heads, spare)
        return self._work_lists[key]


def with_unit_strides(*heads: Tensor) -> tuple[Tensor, ...]:
    """Return tensors whose rows are contiguous, copied only if necessary."""
    return tuple(given if given.stride(-1) == 1 else given.contiguous() for given in heads)
