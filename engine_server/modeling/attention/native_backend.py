"""Paged attention on a CPU by our C++ kernels, which read K and V where they lie in the cache."""

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.memory.cache_layout import FLOAT8, INT8, Pages
from engine_server.modeling.native.library import DTYPES, kernels
from engine_server.modeling.scoring import Scoring

# The cache has tokens in groups of this number; a block is some groups.
GROUP = 16
# The kernels' numbers of a quantised cache's dtypes.
QUANTISED = {INT8: 1, FLOAT8: 2}


class NativeAttention(TorchAttention):
    """Attention over a cache with the shapes of TorchAttention's, and the order of elements of native/cache.h."""

    def begin(self, inputs: StepInputs) -> None:
        super().begin(inputs)
        rows = (inputs.rows, inputs.starts, inputs.lengths, inputs.contexts)
        # int32 [S, 4]: row of the block table, first token, tokens in this step, tokens in the cache with them.
        self._sequences = torch.from_numpy(np.stack(rows, 1).astype(np.int32))
        # For each kind, int32 [R, blocks a row]; copies nothing if the table is staged.
        self._tables = [torch.from_numpy(np.ascontiguousarray(table)) for table in inputs.tables]

    def step_tensors(self) -> list[Tensor]:
        return [*(slots.places for slots in self._slots), self._sequences, *self._tables]

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        assert layer is not None
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values = self.keys[tensor], self.values[tensor]
        if not self._takes(query.dtype, keys):
            return super().attend(layer, query, key, value, scoring)
        query, key, value = (
            given if given.stride(-1) == 1 else given.contiguous() for given in (query, key, value)
        )
        self._write(kind, keys, values, key, value)
        return self._attend(kind, keys, values, query, scoring)

    def require_invariance(self, dtype: torch.dtype) -> None:
        super().require_invariance(dtype)
        if not all(self._takes(dtype, keys) for keys in self.keys):
            raise UnsupportedModelError(
                "batch_invariant on a CPU takes float32 or bfloat16, heads of an even size and a block_size that is a "
                f"multiple of {GROUP}; this is {str(dtype).removeprefix('torch.')} with a block_size of "
                f"{self.block_size}"
            )

    def _takes(self, dtype: torch.dtype, keys: Pages) -> bool:
        """Return True if the kernels compute with queries of `dtype` over a layer's cache."""
        whole = keys.data.shape[-1] * dtype.itemsize % torch.float32.itemsize == 0
        stored = keys.data.dtype == dtype or keys.data.dtype in QUANTISED
        return dtype in DTYPES and stored and whole and self.block_size % GROUP == 0

    def _write(self, kind: int, keys: Pages, values: Pages, key: Tensor, value: Tensor) -> None:
        tokens, kv_heads, key_dim = key.shape
        kernels().write_cache(
            key.dtype == torch.bfloat16, QUANTISED.get(keys.data.dtype, 0), *addresses(keys), *addresses(values),
            key.data_ptr(), key.stride(0), key.stride(1), value.data_ptr(), value.stride(0), value.stride(1),
            self._slots[kind].places.data_ptr(), tokens, kv_heads, key_dim, value.shape[-1], self.block_size,
        )  # fmt: skip

    def _attend(self, kind: int, keys: Pages, values: Pages, query: Tensor, scoring: Scoring) -> Tensor:
        tokens, heads, key_dim = query.shape
        kv_heads, value_dim = values.data.shape[1], values.data.shape[-1]
        table, out = self._tables[kind], query.new_empty(tokens, heads, value_dim)
        by_head = [
            None if given is None else given.float().contiguous() for given in (scoring.sinks, scoring.alibi)
        ]
        kernels().attention(
            query.dtype == torch.bfloat16, QUANTISED.get(keys.data.dtype, 0), out.data_ptr(), query.data_ptr(),
            query.stride(0), query.stride(1), *addresses(keys), *addresses(values), table.data_ptr(), table.shape[1],
            self._sequences.data_ptr(), len(self._sequences), heads, kv_heads, key_dim, value_dim, self.block_size,
            scoring.causal, scoring.window or 0, scoring.scaling, scoring.softcap or 0.0,
            *(None if given is None else given.data_ptr() for given in by_head),
        )  # fmt: skip
        return out


def addresses(pages: Pages) -> tuple[int, int | None]:
    """Return the addresses of a cache's elements and of its scales, if it has any."""
    return pages.data.data_ptr(), None if pages.scales is None else pages.scales.data_ptr()
