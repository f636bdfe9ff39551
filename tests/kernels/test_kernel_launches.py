"""The launches of a layer in a decode step: kernels of Triton, and operations of torch that compute."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import kernel_platform
from tiny_models import TINY, run_passes, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import Staged, StepInputs
from engine_server.modeling.graphs.recording import tensors_in
from engine_server.modeling.memory.cache_layout import LayerShape, lay_out

SIZES = TINY | {"vocab_size": 64, "head_dim": 16, "pad_token_id": 0}
DECODES, BLOCK_SIZE, CONTEXT = 2, 16, 5
# Operations that are one product, on a GPU and with a CPU's packed weights.
PRODUCTS = ("linear", "mm", "addmm", "_linear_pointwise")
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class Launches(TorchDispatchMode):
    """Counts launches by name: views and allocations launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **kwargs or {}), func.overloadpacket.__name__
        viewed = not func._schema.is_mutable and storages(result) <= storages((args, kwargs))
        if not (self._in_kernel or viewed or name in ALLOCATIONS):
            self.counts[name] += 1
        return result

    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Count a kernel of Triton, and none of the operations by which the interpreter computes it."""
        self.counts[name] += 1
        self._in_kernel = True
        try:
            yield
        finally:
            self._in_kernel = False


def storages(tree: Any) -> set[int]:
    """Return the addresses of the tensors in a tree but for packed weights, which have none."""
    tensors = (tensor for tensor in tensors_in(tree) if tensor.layout is torch.strided)
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    run, interpret = JITFunction.run, GridExecutor.__call__

    def counted_run(self: JITFunction, *arguments: Any, **options: Any) -> Any:
        with found.kernel(self.__name__):
            return run(self, *arguments, **options)

    def counted_interpret(self: GridExecutor, *arguments: Any, **options: Any) -> Any:
        with found.kernel(self.fn.__name__):
            return interpret(self, *arguments, **options)

    monkeypatch.setattr(JITFunction, "run", counted_run)
    monkeypatch.setattr(GridExecutor, "__call__", counted_interpret)
    return found


@torch.inference_mode()
def decode_step(model: PreTrainedModel, launches: Launches, device: torch.device) -> Counter[str]:
    """Return the launches of a step of decodes."""
    platform = kernel_platform(device)
    run_passes(model, platform)
    shape = LayerShape(model.config.num_key_value_heads, model.config.head_dim, model.config.head_dim, None)
    layout = lay_out([shape] * model.config.num_hidden_layers, CONTEXT)
    backend = platform.paged_attention(layout, DECODES, BLOCK_SIZE, torch.float32)
    rows = np.arange(DECODES)
    ones, contexts = np.ones_like(rows), np.full_like(rows, CONTEXT)
    positions, slots = contexts - 1, rows * BLOCK_SIZE + CONTEXT - 1
    tables = np.arange(DECODES, dtype=np.int32).reshape(1, DECODES, 1)
    staged = Staged(
        *(
            torch.from_numpy(part.astype(np.int32)).to(device)
            for part in (
                rows, positions, slots[None], np.zeros((0, 4)), np.stack([rows, rows, ones, contexts], 1), tables,
                rows, rows, -ones,
            )
        )
    )  # fmt: skip
    inputs = StepInputs(rows, positions, [slots], rows, ones, contexts, [*tables], rows, staged=staged)
    given = {
        "input_ids": torch.from_numpy(rows)[None].to(device),
        "position_ids": torch.from_numpy(positions)[None].to(device),
    }
    launches.counts.clear()
    with ForwardContext(backend).run(inputs), launches:
        model.base_model(**given, use_cache=False)
    return launches.counts.copy()


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_dense_decoder_layer_takes_nine_launches_in_decode(
    device: torch.device, launches: Launches, name: str
) -> None:
    few, many = (
        decode_step(tiny_model(name, **SIZES | {"num_hidden_layers": layers}).to(device), launches, device)
        for layers in (2, 3)
    )
    layer = many - few
    assert (
        sum(layer.pop(name, 0) for name in PRODUCTS) == 4
    )  # of queries, keys and values; output; gate and up; down
    assert layer == {"_rms_norm": 2, "_write_heads": 1, "_attend": 1, "_gated": 1}
