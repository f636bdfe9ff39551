"""Paged attention on a GPU by our Triton kernels, from the staged inputs of a step."""

import torch
from torch import Tensor

from engine_server.modeling.attention.interface import AttentionBackend, StepInputs, UnsupportedModelError
from engine_server.modeling.device import Device
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.cache_write import write_cache
from engine_server.modeling.kernels.launch import DECODE, MAX_DIM, prefill_table, settings
from engine_server.modeling.kernels.work_list import WorkList, plan_work, spare_chunks
from engine_server.modeling.memory.cache_layout import Layout
from engine_server.modeling.scoring import Scoring


class TritonAttention(AttentionBackend):
    """One K and one V tensor for each of the layout's: [blocks, block size, kv heads, dim]."""

    def __init__(
        self,
        layout: Layout,
        num_blocks: int,
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
        self.keys, self.values = layout.allocate(num_blocks, block_size, dtype, platform.zeros)
        self._processors = processors

    def describe(self, query_heads: int, dtype: torch.dtype) -> str:
        tables = {} if self.invariant else {"decode": DECODE}
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
        self._work_lists: dict[tuple[int | None, int], WorkList] = {}

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        assert layer is not None
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values, step = self.keys[tensor], self.values[tensor], self._step
        query, key, value = (
            given if given.stride(-1) == 1 else given.contiguous() for given in (query, key, value)
        )
        write_cache(keys, values, key, value, step.slots[kind])
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        if len(step.prefills):
            prefill(out, query, keys, values, step.tables[kind], step.prefills, scoring, self.invariant)
        if len(step.decodes) and self.invariant:
            prefill(out, query, keys, values, step.tables[kind], step.decodes, scoring, self.invariant)
        elif len(step.decodes):
            work = self._work(scoring.window, key.shape[1])
            decode(out, query, keys, values, step.tables[kind], step.decodes, scoring, work)
        return out

    def _work(self, window: int | None, kv_heads: int) -> WorkList:
        """Return the step's work list for layers of this window and number of KV heads, which share it."""
        key = (window, kv_heads)
        if key not in self._work_lists:
            spare = spare_chunks(kv_heads, self._processors)
            self._work_lists[key] = plan_work(self._step.decodes, window, kv_heads, spare)
        return self._work_lists[key]
