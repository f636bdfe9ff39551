"""Linears of one input made into one: fewer and larger products, and one pass over the input."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))  # of one attention layer's input
GATED_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class FusedLinear(nn.Module):
    """Several Linears' outputs of one input, each to be asked for once."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.linear = join(linears)
        self.sizes = [linear.out_features for linear in linears]
        self.values: Tensor | None = None  # the input of which some outputs were not asked for yet
        self.outputs: dict[int, Tensor] = {}

    def output(self, place: int, values: Tensor) -> Tensor:
        """What the Linear at `place` makes of `values`, [..., in] to [..., out]."""
        if values is not self.values:
            self.values = values
            self.outputs = dict(enumerate(self.linear(values).split(self.sizes, dim=-1)))
        output = self.outputs.pop(place)
        if not self.outputs:
            self.values = None
        return output


class Part(nn.Module):
    """Stands where one of the Linears stood."""

    def __init__(self, fused: FusedLinear, place: int) -> None:
        super().__init__()
        self.fused = fused
        self.place = place

    def forward(self, values: Tensor) -> Tensor:
        return self.fused.output(self.place, values)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer", arXiv 2002.05202)."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        gate, up = mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")
        assert isinstance(gate, nn.Linear) and isinstance(up, nn.Linear)
        self.gate_up_proj = join([gate, up])
        self.down_proj = mlp.get_submodule("down_proj")
        self.act_fn = mlp.get_submodule("act_fn")

    def forward(self, values: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        output: Tensor = self.down_proj(self._apply_gate(self.gate_up_proj(values)))
        return output

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        """[..., 2 * dim] to [..., dim]; it has the name that it has in transformers' experts."""
        gate, up = gate_up.chunk(2, dim=-1)
        output: Tensor = self.act_fn(gate) * up
        return output


def join(linears: Sequence[nn.Linear]) -> nn.Linear:
    """One Linear whose output is theirs, one after the other."""
    first = linears[0]
    size = sum(linear.out_features for linear in linears)
    joined = nn.Linear(first.in_features, size, bias=first.bias is not None, device="meta")
    weights = torch.cat([linear.weight.detach() for linear in linears])
    joined.weight = nn.Parameter(weights, requires_grad=False)
    if first.bias is not None:
        biases = torch.cat([linear.bias.detach() for linear in linears])
        joined.bias = nn.Parameter(biases, requires_grad=False)
    return joined


def fuse_linears(modules: Iterable[nn.Module]) -> None:
    """Fuse every attention layer's projections, and the gate and up projections of MLPs."""
    for parent in modules:
        children = dict(parent.named_children())
        for names in PROJECTIONS:
            found = [children[name] for name in names if name in children]
            if len(found) == len(names) and alike(found):
                fused = FusedLinear([one for one in found if isinstance(one, nn.Linear)])
                for place, name in enumerate(names):
                    setattr(parent, name, Part(fused, place))
        for name, child in children.items():
            if {part for part, _ in child.named_children()} == GATED_MLP:
                swap_mlp(parent, name, child)


def alike(linears: Sequence[nn.Module]) -> bool:
    """Whether they are Linears of one input, all with a bias or none."""
    kinds = {
        (one.in_features, one.bias is None, one.weight.dtype) for one in linears if type(one) is nn.Linear
    }
    return len(kinds) == 1 and all(type(one) is nn.Linear for one in linears)


def swap_mlp(parent: nn.Module, name: str, mlp: nn.Module) -> None:
    """Put a GatedMLP in place of a module that computes the same."""
    gate, up = mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")
    if not alike([gate, up]):
        return
    assert isinstance(gate, nn.Linear)
    fused = GatedMLP(mlp)
    sample = torch.linspace(-1, 1, 2 * gate.in_features).to(gate.weight).view(1, 2, -1)
    with torch.inference_mode():
        same = torch.allclose(fused(sample), mlp(sample), rtol=0.05, atol=1e-3)
    if same:
        setattr(parent, name, fused)
        del mlp.gate_proj, mlp.up_proj  # whoever walks over the modules still holds the old one
