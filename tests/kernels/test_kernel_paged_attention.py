"""Attention over a cache by Triton kernels, with what a layer left to it."""

from itertools import product

import pytest
import torch
from attention_steps import BLOCK_SIZE, PENDING, STEPS, WINDOWS, check

from engine_server.modeling.attention.triton_backend import TritonAttention
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.platform.cpu import CpuPlatform


def make(layout: Layout, blocks: int, platform: CpuPlatform) -> TritonAttention:
    return TritonAttention(layout, [blocks], BLOCK_SIZE, torch.float32, platform, processors=2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # padding queries of a tile see no key
@pytest.mark.parametrize("step", STEPS)
def test_paged_attention_equals_an_explicit_softmax(device: torch.device, step: str) -> None:
    if device.type != "cpu":
        pytest.skip("the steps are staged on a CPU, for the interpreter")
    for kind, pending in product([*WINDOWS, "shared"], PENDING):
        check(make, kind, pending, step)
