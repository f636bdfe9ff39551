"""Experts with a weight format for each product of each expert, so that they can stay quantised."""

from collections.abc import Iterator
from copy import copy, deepcopy

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.weight_format import WeightFormat, WeightLayout, as_loaded
from engine_server.modeling.layers.gated_experts import (
    DOWN,
    GATE_UP,
    WEIGHTS,
    GatedExperts,
    receive_gated,
)
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.native.recording import one_operation

# Sizes of the sample on which a class is compared with ours: experts, those of a token, tokens, hidden, intermediate.
EXPERTS, CHOSEN, TOKENS, HIDDEN, INNER = 4, 2, 6, 32, 16


class RoutedExperts(GatedExperts):
    """Gated experts with one product for each chosen expert, for which the host reads the choices.

    The results of a token are summed in the order of its choices, so they are bitwise independent of other tokens if
    those of the formats are.
    """

    layout: WeightLayout = staticmethod(as_loaded)
    # Tensors that wait for the others of their product.
    received: dict[str, Tensor]
    # A weight for each expert, by the name of the parameter.
    products: dict[str, list[WeightFormat]]

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

    def receive(self, name: str, tensor: Tensor) -> None:
        self.received[name] = tensor
        weight = name.removesuffix("_bias")
        if self.received.keys() >= {weight, f"{weight}_bias"} & self._parameters.keys():
            whole = self._experts(self.received.pop(weight), self.received.pop(f"{weight}_bias", None))
            self.products[weight] = [self._own(weight, format).arranged(self.layout) for format in whole]

    def _experts(self, weight: Tensor, bias: Tensor | None) -> Iterator[WeightFormat]:
        """Return the weight [out, in] of each expert."""
        for number in range(len(weight)):
            own_bias = None if bias is None else bias[number]
            if isinstance(weight, QuantizedTensor):
                assert (
                    isinstance(weight.format, StackedFormat)
                    and weight.format.transposed == self.is_transposed
                )
                yield weight.format.experts[number].with_bias(own_bias)
            else:
                matrix = weight[number].t().contiguous() if self.is_transposed else weight[number]
                yield DenseFormat.load(matrix, own_bias)

    def _own(self, name: str, whole: WeightFormat) -> WeightFormat:
        """Return this rank's part of one expert's weight."""
        cut = self.cut_of_expert(name)
        return whole if cut is None else whole.shard(cut)

    def num_inputs(self, name: str) -> int:
        """Return the number of inputs of an expert's weight on this rank, before it is received."""
        cut, inputs = self.cut_of_expert(name), self.whole_shapes[name][0]
        return inputs if cut is None or cut.dim == 0 else cut.width(inputs)

    def settle(self) -> None:
        for name, parameter in list(self._parameters.items()):
            if parameter is not None and name.removesuffix("_bias") not in self.products:
                self.receive(name, self.received.get(name, parameter))
        formats = [format for formats in self.products.values() for format in formats]
        self.tables = tuple(tensor for format in formats for tensor in format.parameters().values())
        self._parameters.update(dict.fromkeys(self._parameters))


def receive_routed(module: nn.Module, layout: WeightLayout) -> None:
    """Make `module`, whose class `is_routed`, compute its experts by one product for each, in `layout`."""
    experts = receive_gated(module, RoutedExperts)
    assert isinstance(experts, RoutedExperts)
    experts.layout, experts.received, experts.products = layout, {}, {}


@torch.inference_mode()
def is_routed(module: nn.Module, device: torch.device) -> bool:
    """Check that the class of a module computes the same as `RoutedExperts`, with small random weights."""
    if not has_routed_parameters(module):
        return False
    plain = small_experts(module, device)
    ours = deepcopy(plain)
    receive_routed(ours, as_loaded)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(TOKENS, HIDDEN, generator=generator).to(device)
    scores, index = torch.rand(TOKENS, EXPERTS, generator=generator).to(device).topk(CHOSEN)
    try:
        ours.settle()  # type: ignore[operator]
        return same(ours(values, index, scores), plain(values, index, scores), 1)
    except misfits():
        return False


def has_routed_parameters(module: nn.Module) -> bool:
    """Check that a module has the parameters of gated experts and no others."""
    weights = set(WEIGHTS)
    biases = {f"{name}_bias" for name in WEIGHTS} if getattr(module, "has_bias", False) else set()
    return (
        module._parameters.keys() == weights | biases
        and all(getattr(module, name).ndim == 3 for name in weights)
        and bool(getattr(module, "has_gate", False))
        and not getattr(module, "has_post_expert_norm", False)
    )


def small_experts(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a module of the class that transformers gave `module`, with a few small random experts in float32."""
    small = copy(module)
    small.__class__ = original_class(module)
    shapes = {
        GATE_UP: (EXPERTS, 2 * INNER, HIDDEN),
        DOWN: (EXPERTS, HIDDEN, INNER),
        f"{GATE_UP}_bias": (EXPERTS, 2 * INNER),
        f"{DOWN}_bias": (EXPERTS, HIDDEN),
    }
    generator = torch.Generator().manual_seed(0)
    small._parameters = {}
    for name in module._parameters:
        weight = torch.randn(shapes[name], generator=generator) / 4
        if small.is_transposed and weight.ndim == 3:
            weight = weight.mT.contiguous()
        small._parameters[name] = nn.Parameter(weight.to(device), requires_grad=False)
    small.num_experts = EXPERTS  # type: ignore[assignment]
    return small
