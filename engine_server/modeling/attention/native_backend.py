"""Paged attention on a CPU: our C++ kernel for sequences with one token in a step, plain torch for the others."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.torch_backend import Part, TorchAttention, selection
from engine_server.modeling.memory.cache_layout import Pages
from engine_server.modeling.native.library import DTYPES, VECTOR, kernels
from engine_server.modeling.scoring import Scoring

# Dims of heads for which attention.cpp is compiled.
DIMS = (64, 80, 96, 128, 256)


class NativeAttention(TorchAttention):
    """Attention over the cache layout of TorchAttention that reads K and V in place instead of gathering them."""

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        self._native: dict[int, list[Part]] = {}

    def write(self, kind: int, pages: Pages, given: Tensor) -> None:
        if pages.scales is not None or given.dtype != pages.data.dtype or given.stride(-1) != 1:
            return super().write(kind, pages, given)
        tokens, kv_heads, dim = given.shape
        size = given.itemsize
        kernels().write_cache(
            pages.data.data_ptr(), given.data_ptr(), given.stride(0) * size, given.stride(1) * size,
            self._slots[kind].places.data_ptr(), tokens, kv_heads, self.block_size, dim * size,
        )  # fmt: skip

    def parts(self, kind: int, query: Tensor, values: Pages, scoring: Scoring) -> list[Part]:
        if not self._takes(query, values, scoring):
            return super().parts(kind, query, values, scoring)
        if kind not in self._native:
            self._native[kind] = [*self._prefills(self._inputs, kind), *self._decodes_of(kind)]
        return self._native[kind]

    def _takes(self, query: Tensor, values: Pages, scoring: Scoring) -> bool:
        """Return True if the kernel supports a layer's cache and scoring."""
        dim, plain = query.shape[-1], scoring.fused and scoring.alibi is None
        known = query.dtype in DTYPES and values.data.dtype == query.dtype
        return (
            plain and known and dim in DIMS and values.data.shape[-1] == dim and self.block_size % VECTOR == 0
        )

    def _decodes_of(self, kind: int) -> list[Part]:
        inputs, window = self._inputs, self.layout.windows[kind]
        sequences = np.flatnonzero(inputs.lengths == 1)
        if not len(sequences):
            return []
        firsts, contexts = (of_all[sequences] for of_all in self._seen(inputs, kind))
        hidden = np.zeros_like(contexts) if window is None else np.maximum(contexts - window, 0)
        rows = np.stack([inputs.rows[sequences], firsts, hidden, contexts], 1).astype(np.int32)
        tables = np.ascontiguousarray(inputs.tables[kind])  # copies nothing if the table is staged
        tokens = selection(inputs.starts[sequences], self.device)
        return [Decodes(tokens, torch.from_numpy(rows), torch.from_numpy(tables))]


@dataclass(slots=True)
class Decodes:
    """All sequences with one token in this step."""

    # Their indices in the step.
    tokens: slice | Tensor
    # int32 [n, 4]: row of `tables`, first block, and from there on the number of hidden tokens and of all tokens.
    rows: Tensor
    # int32 [R, blocks a row]
    tables: Tensor

    def attend(self, query: Tensor, keys: Pages, values: Pages, scoring: Scoring) -> Tensor:
        query = query if query.stride(-1) == 1 else query.contiguous()
        count, heads, dim = query.shape
        kv_heads, block_size = keys.data.shape[1:3]
        out = query.new_empty(count, heads, dim)
        kernels().decode(
            query.dtype == torch.bfloat16, out.data_ptr(), query.data_ptr(), query.stride(0), query.stride(1),
            keys.data.data_ptr(), values.data.data_ptr(), self.tables.data_ptr(), self.tables.shape[1],
            self.rows.data_ptr(), count, heads, kv_heads, dim, block_size, scoring.scaling,
        )  # fmt: skip
        return out
