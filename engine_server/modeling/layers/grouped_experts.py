"""Gated experts whose tokens are grouped on the device, for one that runs ahead of the host."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.integrations.moe import _grouped_linear

from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, GatedExperts
from engine_server.modeling.native.recording import one_operation


class Groups(NamedTuple):
    """The choices of a step's tokens, in the order of their experts."""

    # int64 [choices].
    experts: Tensor
    # The end of each expert's choices, int32 [experts].
    ends: Tensor
    # See `GatedExperts.update_rows`.
    updates: Tensor


class GroupedExperts(GatedExperts):
    """Gated experts in transformers' grouped products: by transformers' own forward, unless a token has an adapter.

    Ours doesn't read the choices on the host either, so a step with adapters can be captured if one without can.
    """

    fixed_tables = True

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        slots = self.token_slots
        if slots is None:
            return super().forward(hidden_states, *args, **kwargs)
        return self._adapted(slots, hidden_states, *args, **kwargs)

    @one_operation  # its operations depend on the chosen experts
    def _adapted(
        self, slots: Tensor, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        """Compute the experts. top_k_index: int64 [tokens, chosen]; top_k_weights: [tokens, chosen]."""
        tokens, chosen = top_k_index.shape
        experts, order = top_k_index.flatten().sort(stable=True)
        numbers = torch.arange(self.num_experts, device=experts.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        groups = Groups(experts, ends, self.update_rows(slots, top_k_index)[order])
        gate_up = self._product(GATE_UP, hidden_states[order // chosen], groups)
        down = self._product(DOWN, self._apply_gate(gate_up), groups)  # type: ignore[operator]
        parts = torch.empty_like(down).index_copy_(0, order, down).view(tokens, chosen, -1)
        output = (parts * top_k_weights.unsqueeze(-1).float()).sum(1).to(hidden_states.dtype)
        return output if self.ranks is None else self.ranks.sum(output)

    def _product(self, weight: str, values: Tensor, groups: Groups) -> Tensor:
        """Return the products of an expert's weight with its values: [choices, in] to [choices, out]."""
        bias = self._parameters.get(f"{weight}_bias")
        own_bias = None if bias is None else bias[groups.experts]
        results: Tensor = _grouped_linear(
            values, self.get_parameter(weight), groups.ends, own_bias, self.is_transposed
        )
        self.add_update(weight, results, values, groups.updates)
        return results
