"""Experts with a weight format for each product of each expert, so that they can stay quantised."""

import torch
from torch import Tensor

from engine_server.modeling.layers.formatted_experts import FormattedExperts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP
from engine_server.modeling.native.recording import one_operation


class RoutedExperts(FormattedExperts):
    """Gated experts with one product for each chosen expert, for which the host reads the choices.

    The results of a token are summed in the order of its choices, so they are bitwise independent of other tokens if
    those of the formats are.
    """

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Compute the experts. top_k_index: int64 [tokens, chosen]; top_k_weights: [tokens, chosen]."""
        return self._routed(hidden_states, top_k_index, top_k_weights, self.token_slots)

    @one_operation  # its operations depend on the chosen experts
    def _routed(
        self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, slots: Tensor | None
    ) -> Tensor:
        tokens, chosen = top_k_index.shape
        order = top_k_index.flatten().argsort(stable=True)
        counts = top_k_index.flatten().bincount(minlength=len(self.products[DOWN])).tolist()
        updates = None if slots is None else self.update_rows(slots, top_k_index)
        results = hidden_states.new_empty(tokens * chosen, hidden_states.shape[-1])
        for expert, places in enumerate(torch.split(order, counts)):
            if len(places):
                rows = None if updates is None else updates[places]
                gate_up = self._product(GATE_UP, expert, hidden_states[places // chosen], rows)
                gated = self._apply_gate(gate_up)  # type: ignore[operator]
                results[places] = self._product(DOWN, expert, gated, rows)
        parts = results.view(tokens, chosen, -1) * top_k_weights.unsqueeze(-1).float()
        total = parts[:, 0]
        for number in range(1, chosen):
            total = total + parts[:, number]
        output = total.to(hidden_states.dtype)
        return output if self.ranks is None else self.ranks.sum(output)

    def _product(self, weight: str, expert: int, values: Tensor, updates: Tensor | None) -> Tensor:
        """Return the product of an expert's weight with values [n, in]: [n, out]. updates: their rows, int32 [n]."""
        results = self.products[weight][expert].apply(values)
        if updates is not None:
            self.add_update(weight, results, values, updates)
        return results
