"""Experts with a weight format for each product: quantised ones, their memory, their parts and their rows."""

from functools import partial
from typing import Any

import pytest
import torch
from tiny_experts import EXPERTS, HIDDEN, INNER, TOKENS, by_kind, experts_of, inputs, replace_experts, tiny
from tiny_models import TINY
from torch import Tensor

from engine_server.config import QuantizationConfig
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.native import native
from engine_server.modeling.formats.native_integer import NativeIntegerFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.weight_format import Cut, WeightLayout
from engine_server.modeling.layers.experts import has_experts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, receive_gated
from engine_server.modeling.layers.routed_experts import RoutedExperts
from engine_server.modeling.loader.room import saved_bytes
from engine_server.modeling.loader.rounding import after, round_weights
from engine_server.modeling.replacements.experts import computes_same

pytestmark = pytest.mark.transformers

CPU = torch.device("cpu")


def routed(kind: str, layout: WeightLayout, dtype: torch.dtype = torch.float32) -> RoutedExperts:
    experts = experts_of(tiny(kind, dtype))
    receive_gated(experts, RoutedExperts, layout)
    experts.settle()
    return experts


def int8(format: Any) -> Any:
    return rounded_to_integers(format, 8, None)


def dequantised(format: Any) -> DenseFormat:
    quantised = int8(format)
    assert isinstance(quantised, QuantizedFormat)
    return quantised.dequantised()


@by_kind
def test_dense_experts_compute_what_transformers_does(kind: str) -> None:
    model = tiny(kind)
    assert computes_same(experts_of(model), RoutedExperts, CPU)
    expected = experts_of(model)(*inputs())
    torch.testing.assert_close(routed(kind, as_loaded)(*inputs()), expected, rtol=1e-5, atol=1e-5)


def test_class_that_computes_something_else_is_not_replaced() -> None:
    experts = experts_of(tiny("Mixtral"))
    kind = type(experts)
    twice = type(kind.__name__, (kind,), {"forward": lambda self, *args: 2 * kind.forward(self, *args)})
    experts.__class__ = twice
    assert not computes_same(experts, RoutedExperts, CPU)


@by_kind
def test_quantised_experts_differ_from_their_weights_by_the_rounding_of_values(kind: str) -> None:
    experts = routed(kind, partial(after, int8, native))
    products = [product for products in experts.products.values() for product in products]
    assert all(isinstance(product, NativeIntegerFormat) for product in products)
    expected = routed(kind, dequantised)(*inputs())
    difference = (experts(*inputs()) - expected).abs().max()
    # Values are rounded twice, each by at most half of 1/127 of the largest in a group; errors add up at random.
    assert 0 < difference < expected.abs().max() / 127 * 2


@by_kind
def test_experts_in_int8_take_at_most_three_fifths_of_bfloat16(kind: str) -> None:
    dense = sum(tensor.nbytes for tensor in routed(kind, as_loaded, torch.bfloat16).tables)
    held = sum(tensor.nbytes for tensor in routed(kind, int8, torch.bfloat16).tables)
    assert held <= 0.6 * dense


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_of_a_token_is_bitwise_independent_of_other_tokens(dtype: torch.dtype) -> None:
    experts, (values, index, weights) = routed("Qwen3Moe", partial(after, int8, native), dtype), inputs(dtype)
    together = experts(values, index, weights)
    for token in range(TOKENS):
        alone = slice(token, token + 1)
        assert torch.equal(experts(values[alone], index[alone], weights[alone]), together[alone])


@pytest.mark.parametrize("round_to", [partial(rounded_to_integers, bits=4, group=16), rounded_to_float8])
def test_parts_of_quantised_experts_add_up_to_the_whole(round_to: WeightLayout) -> None:
    tensors = dict(experts_of(tiny("Mixtral"))._parameters)

    def results(cuts: dict[str, Cut]) -> Tensor:
        experts = experts_of(tiny("Mixtral"))
        receive_gated(experts, RoutedExperts, as_loaded)
        experts.cuts = cuts
        for name, tensor in tensors.items():
            stack = StackedFormat([round_to(DenseFormat(weight)) for weight in tensor])  # type: ignore[misc]
            experts.receive(name, QuantizedTensor(stack, CPU))
        experts.settle()
        assert all(isinstance(format, QuantizedFormat) for format in experts.products[DOWN])
        return experts(*inputs())

    parts = [results({GATE_UP: Cut(1, 2, rank, blocks=2), DOWN: Cut(2, 2, rank)}) for rank in range(2)]
    torch.testing.assert_close(sum(parts), results({}), rtol=1e-4, atol=1e-4)


def test_transformers_joins_quantised_experts_without_dequantising_them() -> None:
    weights = [int8(DenseFormat(torch.randn(INNER, HIDDEN))) for _ in range(2 * EXPERTS)]
    tensors = [QuantizedTensor(weight, CPU) for weight in weights]
    gate, up = torch.stack(tensors[:EXPERTS]), torch.stack(tensors[EXPERTS:])
    joined = torch.cat([gate, up], dim=1)
    assert isinstance(joined, QuantizedTensor) and isinstance(joined.format, StackedFormat)
    assert all(isinstance(expert, GroupedFormat) for expert in joined.format.experts)
    expected = torch.cat([gate.format.dense(), up.format.dense()], dim=1)
    assert torch.equal(joined.format.dense(), expected)
    # Formats that can't be joined, and other operations, give dense weights.
    other = torch.stack(
        [QuantizedTensor(rounded_to_float8(weight.dequantised()), CPU) for weight in weights[:EXPERTS]]
    )
    assert not isinstance(torch.cat([gate, other], dim=1), QuantizedTensor)
    assert not isinstance(torch.cat([gate, up], dim=0), QuantizedTensor)


@by_kind
def test_rounding_while_loading_includes_experts_and_is_in_the_estimate(kind: str) -> None:
    model = tiny(kind, torch.bfloat16)
    kinds = frozenset(type(module) for module in model.modules() if has_experts(module))
    settings = QuantizationConfig(method="int8", group_size=None, head=False)
    saved = [saved_bytes(model, settings, torch.bfloat16, as_loaded, own) for own in (kinds, frozenset())]
    numbers = TINY["num_hidden_layers"] * EXPERTS * 3 * INNER * HIDDEN
    scales = TINY["num_hidden_layers"] * EXPERTS * (2 * INNER + HIDDEN) * 4
    assert saved[0] - saved[1] == numbers - scales

    replace_experts(model, RoutedExperts)
    round_weights(model, settings, as_loaded)
    experts = next(module for module in model.modules() if isinstance(module, RoutedExperts))
    experts.settle()
    assert all(
        isinstance(format, GroupedFormat) for formats in experts.products.values() for format in formats
    )


def test_group_size_that_does_not_divide_the_inputs_of_experts_is_refused_by_name() -> None:
    model = tiny("Mixtral")
    replace_experts(model, RoutedExperts)
    settings = QuantizationConfig(method="int8", group_size=64, head=False)
    with pytest.raises(ValueError, match=r"doesn't divide the 32 inputs of .*experts\.down_proj"):
        round_weights(model, settings, as_loaded)
