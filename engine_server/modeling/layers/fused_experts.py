"""Gated experts by our Triton kernels, with the weights of all experts in one format, which can stay quantised.

Four launches: the tiles of the choices, two grouped products, of which the first computes the gate too, and the
weighted sum. None asks the host for anything.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.joined import JoinedFormat, join
from engine_server.modeling.formats.reordered import ReorderedFormat
from engine_server.modeling.formats.triton_quantized import TritonQuantizedFormat, kernel_weight
from engine_server.modeling.formats.weight_format import Weight, WeightFormat
from engine_server.modeling.kernels.activation import Activation, gated
from engine_server.modeling.kernels.expert_launch import launch_for
from engine_server.modeling.kernels.expert_products import ExpertWeights, multiply
from engine_server.modeling.kernels.expert_sum import weighted_sum
from engine_server.modeling.kernels.expert_tiles import plan_tiles
from engine_server.modeling.layers.formatted_experts import FormattedExperts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP


class FusedExperts(FormattedExperts):
    """Gated experts in grouped products, with one format of the outputs of all experts for each weight.

    In steps with adapters the gate is computed between the updates of both products, by a launch of its own.
    """

    fixed_tables = True
    fixed_order = True

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Compute the experts. top_k_index: int64 [tokens, chosen]; top_k_weights: [tokens, chosen]."""
        gate_up, down = self.weights(GATE_UP), self.weights(DOWN)
        launch = launch_for(
            top_k_index.numel(), self.num_experts, hidden_states.dtype, gate_up.bits is not None,
            self.batch_invariant,
        )  # fmt: skip
        choices = plan_tiles(top_k_index.contiguous(), self.num_experts, launch.rows)
        slots, gate = self.token_slots, self.fused_gate
        if slots is None and gate is not None:
            values = multiply(hidden_states, gate_up, choices, launch, gate)
            results = multiply(values, down, choices, launch)
        else:
            results = multiply(hidden_states, gate_up, choices, launch)
            if slots is not None:
                updates = self.update_rows(slots, top_k_index)
                repeated = hidden_states.repeat_interleave(top_k_index.shape[1], 0)
                self.add_update(GATE_UP, results, repeated, updates)
            values = self._apply_gate(results)  # type: ignore[operator]
            results = multiply(values, down, choices, launch)
            if slots is not None:
                self.add_update(DOWN, results, values, updates)
        output = weighted_sum(results, top_k_weights.contiguous())
        return output if self.ranks is None else self.ranks.sum(output)

    @property
    def fused_gate(self) -> Activation | None:
        """The gate, if a kernel computes it."""
        gate = vars(self).get("_apply_gate")
        return gate.args[0] if isinstance(gate, partial) and gate.func is gated else None

    def own_part(self, name: str, whole: Weight) -> Weight:
        part = super().own_part(name, whole)
        return part.dequantised() if isinstance(part, ReorderedFormat) else part

    def joined(self, experts: Sequence[WeightFormat]) -> Sequence[WeightFormat]:
        plain = [one.format if isinstance(one, TritonQuantizedFormat) else one for one in experts]
        whole = join(plain)
        if isinstance(whole, JoinedFormat):  # their forms differ
            whole = join([one.dequantised() if isinstance(one, GroupedFormat) else one for one in plain])
        return [whole]

    def weights(self, name: str) -> ExpertWeights:
        """Return a weight as the kernels take it."""
        (format,) = self.products[name]
        if isinstance(format, GroupedFormat):
            codes, scales, minima, bias, bits, group, factors = kernel_weight(format)
            outputs = len(codes) // self.num_experts
            return ExpertWeights(codes, outputs, bias, scales, minima, bits, group, factors)
        assert isinstance(format, DenseFormat)
        return ExpertWeights(format.weight, len(format.weight) // self.num_experts, format.bias)
