"""Gated experts, both of whose weights adapters may change."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.low_rank import AddLowRank, LowRankTable, StepSlots
from engine_server.modeling.formats.weight_format import Cut, WeightLayout
from engine_server.modeling.layers.experts import Experts, receive_parameters
from engine_server.modeling.native.library import as_rows

WEIGHTS = GATE_UP, DOWN = "gate_up_proj", "down_proj"


class GatedExperts(Experts):
    """Experts as transformers' `use_experts_implementation` describes them, [tokens, hidden] to [tokens, hidden].

    down(act(gate(x)) * up(x)) of each chosen expert, weighted.
    """

    # The tables of `updates` must exist before steps are captured, since kernels are captured with their addresses.
    fixed_tables: ClassVar[bool] = False
    is_transposed: bool
    num_experts: int
    # Inputs and outputs of a whole expert's weight, of which a rank may have a part, by the name of the parameter.
    whole_shapes: dict[str, tuple[int, int]]
    # The adapters of the step's tokens; None: the experts take none.
    step_slots: StepSlots | None = None
    add_low_rank: AddLowRank
    # Results are required to be bitwise independent of batch composition.
    batch_invariant = False
    # The updates of the experts' weights, by the name of the parameter; none until it has a table.
    updates: dict[str, LowRankTable]

    def prepare(self, layout: WeightLayout) -> None:
        """Set what the class needs before it receives weights. layout: that of each expert's weights."""
        self.updates = {}

    @property
    def token_slots(self) -> Tensor | None:
        """The slots of the tokens' adapters in the running forward, int32 [tokens]; None: no token has one."""
        return None if self.step_slots is None else self.step_slots.rows

    def update_rows(self, slots: Tensor, top_k_index: Tensor) -> Tensor:
        """Return the row of `updates` for each choice, int32 [tokens * chosen]; -1 for a token without an adapter."""
        first = slots.unsqueeze(1) * self.num_experts
        return torch.where(first < 0, -1, first + top_k_index).flatten().int()

    def add_update(self, weight: str, results: Tensor, values: Tensor, rows: Tensor) -> None:
        """Add to results [n, out] of a weight's products with values [n, in] the updates in `rows`, int32 [n]."""
        if weight in self.updates:
            self.add_low_rank(results, as_rows(values), rows, *self.updates[weight].tensors)

    def cut_of_expert(self, name: str) -> Cut | None:
        """Return the cut of one expert's weight [out, in]."""
        cut = self.cuts.get(name)
        return cut and cut._replace(dim=2 - cut.dim if self.is_transposed else cut.dim - 1)


def receive_gated(module: nn.Module, kind: type[GatedExperts], layout: WeightLayout) -> GatedExperts:
    """Change the class of a module with the parameters of gated experts to one that derives from `kind` too."""
    experts = receive_parameters(module, kind)
    assert isinstance(experts, GatedExperts)
    experts.prepare(layout)
    experts.whole_shapes = {}
    for weight in WEIGHTS:
        _, outputs, inputs = outputs_first(experts, weight)
        experts.whole_shapes[weight] = inputs, outputs
    return experts


def outputs_first(module: nn.Module, name: str) -> tuple[int, int, int]:
    """Return the number of experts, outputs and inputs of a weight of gated experts."""
    experts, rows, columns = module.get_parameter(name).shape
    return (experts, columns, rows) if module.is_transposed else (experts, rows, columns)
