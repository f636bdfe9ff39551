"""Paged attention on a GPU: our Triton kernels, told of a step with one copy."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.modeling.attention import AttentionBackend, Scoring, StepInputs, UnsupportedModelError
from engine_server.modeling.cache_layout import Layout
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.cache_write import write_cache
from engine_server.modeling.kernels.launch import MAX_DIM, num_splits


class TritonAttention(AttentionBackend):
    """One K and one V tensor for each of the layout's: [blocks, block size, kv heads, dim]."""

    def __init__(
        self, layout: Layout, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises UnsupportedModelError for heads that are too large."""
        dim = max(max(shape.key_dim, shape.value_dim) for shape in layout.shapes)
        if dim > MAX_DIM:
            raise UnsupportedModelError(
                f"attention heads have {dim} dims, of which the kernels take {MAX_DIM} at most"
            )
        self.layout = layout
        self.device = device
        self.keys, self.values = layout.allocate(num_blocks, block_size, dtype, device)
        self._processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        )

    def begin(self, inputs: StepInputs) -> None:
        sequences = np.stack(
            [np.arange(len(inputs.starts)), inputs.starts, inputs.lengths, inputs.contexts], axis=1
        )
        single = inputs.lengths == 1
        self._longest = int(inputs.contexts[single].max(initial=0))
        self._prefills, self._decodes, *of_kinds = to_device(
            [sequences[~single], sequences[single], *inputs.slots, *inputs.block_ids], self.device
        )
        self._slots, self._block_ids = of_kinds[: len(inputs.slots)], of_kinds[len(inputs.slots) :]

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        assert layer is not None
        kind, tensor = self.layout.kinds[layer], self.layout.tensors[layer]
        keys, values, block_ids = self.keys[tensor], self.values[tensor], self._block_ids[kind]
        query, key, value = (
            given if given.stride(-1) == 1 else given.contiguous() for given in (query, key, value)
        )
        write_cache(keys, values, key, value, self._slots[kind])
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        if len(self._prefills):
            prefill(out, query, keys, values, block_ids, self._prefills, scoring)
        if len(self._decodes):
            seen = min(self._longest, scoring.window or self._longest)
            splits = num_splits(len(self._decodes) * key.shape[1], seen, self._processors)
            decode(out, query, keys, values, block_ids, self._decodes, scoring, splits)
        return out


def to_device(arrays: list[npt.NDArray[np.integer]], device: torch.device) -> list[Tensor]:
    """int32 tensors like the arrays, by one copy, which the host doesn't wait for.

    Each begins at a multiple of 16 bytes: Triton compiles a kernel once more where one doesn't.
    """
    starts = np.cumsum([0, *(-(-array.size // 4) * 4 for array in arrays)]).tolist()
    host = torch.empty(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    places = [slice(start, start + array.size) for start, array in zip(starts, arrays, strict=False)]
    for array, place in zip(arrays, places, strict=True):
        host.numpy()[place] = array.ravel()
    copy = host.to(device, non_blocking=True)
    return [copy[place].view(array.shape) for array, place in zip(arrays, places, strict=True)]
