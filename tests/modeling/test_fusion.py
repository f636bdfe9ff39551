"""Linears of one input, made into one."""

import pytest
import torch
from torch import nn

from engine_server.modeling.loading.fusion import GatedMLP, Part, fuse_linears


class Attention(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(8, size, bias=bias) for size, bias in zip((12, 4, 4), biases, strict=True)
        )


class MLP(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 20), nn.Linear(8, 20), nn.Linear(20, 8)
        self.act_fn = nn.SiLU()
        self.scale = scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(values)) * self.up_proj(values))
        return output * self.scale


@torch.inference_mode()
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_become_one_product_whatever_their_order(order: tuple[int, ...], bias: bool) -> None:
    layer = Attention((bias,) * 3)
    names = ["q_proj", "k_proj", "v_proj"]
    inputs = [torch.randn(1, 3, 8) for _ in range(2)]
    expected = [[layer.get_submodule(name)(values) for name in names] for values in inputs]
    fuse_linears([layer])
    for values, outputs in zip(inputs, expected, strict=True):
        for place in order:
            torch.testing.assert_close(layer.get_submodule(names[place])(values), outputs[place])
    assert isinstance(layer.q_proj, Part)
    assert layer.q_proj.fused.values is None  # nothing of a step outlives it
    assert sum(parameter.numel() for parameter in layer.parameters()) == 20 * 8 + 20 * bias


def test_projections_that_differ_in_their_bias_stay_as_they_are() -> None:
    layer = Attention((True, False, True))
    fuse_linears([layer])
    assert type(layer.q_proj) is nn.Linear


@torch.inference_mode()
def test_an_mlp_is_fused_if_that_changes_nothing() -> None:
    layer = nn.Sequential(MLP(scale=1.0), MLP(scale=2.0))
    values = torch.randn(1, 3, 8)
    expected = layer(values)
    fuse_linears([layer])
    assert [type(child) for child in layer] == [GatedMLP, MLP]
    torch.testing.assert_close(layer(values), expected)
