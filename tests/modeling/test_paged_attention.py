"""Attention over a cache on a CPU, with what a layer left to it: our kernels and plain torch."""

from itertools import product

import pytest
import torch
from attention_steps import BLOCK_SIZE, PENDING, STEPS, WINDOWS, Make, check

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.native_backend import NativeAttention
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.heads.pending import PendingHeads

BACKENDS: dict[str, Make] = {
    kind.__name__: lambda layout, blocks, platform, kind=kind: kind(
        layout, [blocks], BLOCK_SIZE, torch.float32, platform
    )
    for kind in (TorchAttention, NativeAttention)
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_paged_attention_equals_an_explicit_softmax(backend: str, step: str) -> None:
    for kind, pending in product([*WINDOWS, "shared"], PENDING):
        check(BACKENDS[backend], kind, pending, step)


@pytest.mark.parametrize("layers", [1, 2])
def test_norm_that_no_attention_takes_is_an_error(layers: int) -> None:
    context = ForwardContext(StepAttention())
    norm = PendingHeads()
    with pytest.raises(AssertionError, match="no attention took"), context.run(StepInputs.of([0], [1], [1])):
        for _ in range(layers):
            context.defer(query_norm=norm)
