"""Gated MLPs with one product for gate and up."""

from torch import Tensor, nn

from engine_server.modeling.layers.linear import FusedLinear, Linear


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer", arXiv 2002.05202)."""

    def __init__(self, mlp: nn.Module) -> None:
        """Take over the children of `mlp`: gate_proj, up_proj, down_proj and act_fn."""
        super().__init__()
        gate, up = mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")
        assert isinstance(gate, Linear) and isinstance(up, Linear)
        self.gate_up = FusedLinear([gate, up])
        self.gate_proj, self.up_proj = gate, up
        self.down_proj, self.act_fn = mlp.get_submodule("down_proj"), mlp.get_submodule("act_fn")

    def forward(self, values: Tensor) -> Tensor:
        """Compute the MLP: [..., hidden] to [..., hidden]."""
        output: Tensor = self.down_proj(self._apply_gate(self.gate_up(values)))
        return output

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        """Compute act(gate) * up: [..., 2 * dim] to [..., dim]. The name is that of transformers' experts."""
        gate, up = gate_up.chunk(2, dim=-1)
        output: Tensor = self.act_fn(gate) * up
        return output
