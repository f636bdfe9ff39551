"""Fusion of linear layers of one input into one product."""

import pytest
import torch
from torch import nn

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.gated_mlp import GatedMLP
from engine_server.modeling.layers.kernel_sets.plain import CPU
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.loader.weights import replace_linears, settle
from engine_server.modeling.replacements.mlps import MLPS
from engine_server.modeling.replacements.projections import fuse_projections
from engine_server.modeling.replacements.replacement import Setup


class Attention(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(8, size, bias=bias) for size, bias in zip((12, 4, 4), biases, strict=True)
        )


class MLP(nn.Module):
    def __init__(self, biased_gate: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 20, bias=biased_gate), nn.Linear(8, 20, bias=False)
        self.down_proj = nn.Linear(20, 8)
        self.act_fn = nn.SiLU()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(values)) * self.up_proj(values))
        return output


class ScaledMLP(MLP):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values) * 2.0


@torch.inference_mode()
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_become_one_product_for_any_order_of_their_calls(
    order: tuple[int, ...], bias: bool
) -> None:
    layer = Attention((bias,) * 3)
    names = ["q_proj", "k_proj", "v_proj"]
    inputs = [torch.randn(1, 3, 8) for _ in range(2)]
    expected = [[layer.get_submodule(name)(values) for name in names] for values in inputs]
    replace_linears(layer, as_loaded)
    report = fuse_projections(layer)
    settle(layer)
    for values, outputs in zip(inputs, expected, strict=True):
        for place in order:
            torch.testing.assert_close(layer.get_submodule(names[place])(values), outputs[place])
    assert report.replaced == {"Attention -> FusedLinear": 1}
    kept = [layer.q_proj.fused._outputs.get(values) for values in inputs]
    assert kept == [None, None]  # no data of a step is kept after it
    assert sum(parameter.numel() for parameter in layer.parameters()) == 20 * 8 + 20 * bias


def test_projections_that_differ_in_their_bias_are_not_fused() -> None:
    layer = Attention((True, False, True))
    replace_linears(layer, as_loaded)
    report = fuse_projections(layer)
    settle(layer)
    assert isinstance(layer.q_proj, Linear) and layer.q_proj.fused is None
    assert report.left == {"Attention (projections of different kinds)": 1}


@torch.inference_mode()
def test_only_mlps_of_verified_classes_are_fused() -> None:
    layer = nn.Sequential(MLP(), ScaledMLP(), MLP(biased_gate=True))
    values = torch.randn(1, 3, 8)
    expected = layer(values)
    replace_linears(layer, as_loaded)
    report = MLPS.apply(layer, {(MLP, True): GatedMLP}, Setup(CPU, torch.device("cpu"), as_loaded))
    settle(layer)
    assert [type(child) for child in layer] == [GatedMLP, ScaledMLP, MLP]
    assert report.replaced == {"MLP -> GatedMLP": 1}
    assert report.left == {
        "ScaledMLP (computes something else)": 1,
        "MLP (projections of different kinds)": 1,
    }
    torch.testing.assert_close(layer(values), expected)
