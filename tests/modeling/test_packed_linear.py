"""Linear layers in oneDNN's format: what they compute, and that in float32 a row's bits don't follow from others."""

import pytest
import torch
from torch import nn

from engine_server.modeling.layers.packed_linear import PackedLinear, pack_linears

SIZES = [(48, 144), (576, 3072), (1536, 576), (2048, 512), (4096, 300)]


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_row_has_the_same_bits_whatever_their_number(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(inputs, outputs)).requires_grad_(False)
    rows = torch.randn(1, 70, inputs)
    expected = linear(rows)
    pack_linears([linear])
    assert isinstance(linear[0], PackedLinear)
    whole = linear(rows)
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    for count in (1, 2, 3, 8, 17, 33):
        assert torch.equal(linear(rows[:, 30 : 30 + count]), whole[:, 30 : 30 + count]), count
