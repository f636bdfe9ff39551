"""Fused experts, against transformers' and against dequantised weights in float64."""

from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from expert_updates import adapted, expected, result
from tiers import tiered
from tiny_experts import by_kind, experts_of, inputs, tiny
from torch import Tensor
from weight_forms import random_weight

from engine_server.modeling.formats.codecs import E4M3, FLOAT, Codec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.triton_quantized import fuse_dequantisation
from engine_server.modeling.formats.weight_format import Cut, WeightFormat
from engine_server.modeling.kernels.expert_launch import DENSE, INVARIANT, launch_for
from engine_server.modeling.kernels.expert_products import ExpertWeights, multiply
from engine_server.modeling.kernels.expert_tiles import most_tiles, plan_tiles
from engine_server.modeling.kernels.low_rank import add_low_rank
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, receive_gated
from engine_server.modeling.layers.kernel_sets.triton import TRITON
from engine_server.modeling.loader.rounding import after
from engine_server.modeling.replacements.experts import class_for
from engine_server.modeling.replacements.gates import kernel_of_gate
from engine_server.modeling.replacements.replacement import Setup

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials

# A codec that no kernel knows.
TENTHS = Codec("tenths", 8, lambda codes: codes.float() / 10)
HIDDEN, INNER, EXPERTS, CHOSEN = 64, 32, 4, 2


def fused(
    kind: str, device: torch.device, layout: Any = as_loaded, dtype: torch.dtype = torch.float32
) -> Any:
    """Return the first experts of a model, with the kernel of their gate."""
    experts = experts_of(tiny(kind, dtype))
    gate = kernel_of_gate(experts, Setup(TRITON, device, as_loaded))
    receive_gated(experts, FusedExperts, layout)
    experts.settle()
    experts._apply_gate = gate
    return experts.to(device)


def on(device: torch.device, given: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor.to(device) for tensor in given]


@by_kind
def test_fused_experts_compute_what_transformers_do(kind: str, device: torch.device) -> None:
    plain = experts_of(tiny(kind))
    assert class_for(plain.to(device), Setup(TRITON, device, as_loaded)) is FusedExperts
    found = fused(kind, device)
    assert found.fused_gate == ("clamped_silu" if kind == "GptOss" else "silu")
    given = on(device, inputs())
    torch.testing.assert_close(found(*given), plain(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["DeepseekV3", "DeepseekV2", "Glm4Moe", "Olmoe"])
def test_classes_of_other_models_are_fused_too(kind: str, device: torch.device) -> None:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=HIDDEN, intermediate_size=INNER, moe_intermediate_size=INNER, n_routed_experts=EXPERTS,
        num_experts=EXPERTS,
    )  # fmt: skip
    models = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    plain = getattr(models, f"{kind}Experts")(config).requires_grad_(False)
    torch.manual_seed(0)
    for parameter in plain.parameters():
        parameter.normal_(0.0, 0.25)
    assert class_for(plain.to(device), Setup(TRITON, device, as_loaded)) is FusedExperts
    given = on(device, inputs())
    expected_rows = plain(*given)
    gate = kernel_of_gate(plain, Setup(TRITON, device, as_loaded))
    receive_gated(plain, FusedExperts, as_loaded).settle()
    plain._apply_gate = gate
    torch.testing.assert_close(plain(*given), expected_rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_experts_differ_by_the_rounding_of_products(
    dtype: torch.dtype, device: torch.device
) -> None:
    values, index, weights = on(device, inputs())
    whole = experts_of(tiny("Qwen3Moe")).to(device)(values, index, weights)
    found = fused("Qwen3Moe", device, dtype=dtype)(values.to(dtype), index, weights)
    assert found.dtype == dtype
    slack = 4 * torch.finfo(dtype).eps
    assert (found.float() - whole).abs().max() < slack * whole.abs().max()


@by_kind
def test_gate_of_its_own_kernel_has_the_bits_of_the_fused_one(kind: str, device: torch.device) -> None:
    """Steps with adapters compute the gate apart."""
    experts, given = fused(kind, device, dtype=torch.bfloat16), on(device, inputs(torch.bfloat16))
    together = experts(*given)
    gate = experts._apply_gate
    experts._apply_gate = lambda gate_up: gate(gate_up)
    assert experts.fused_gate is None
    assert torch.equal(experts(*given), together)


@pytest.mark.parametrize("count", [1, 3, 40, 700, 2100])
def test_tiles_hold_every_choice_once_in_the_order_of_experts(count: int, device: torch.device) -> None:
    """Some experts have no choice; 2,100 tokens have more choices than a program reads at a time."""
    generator = torch.Generator().manual_seed(count)
    index = torch.rand(count, 6, generator=generator).topk(2).indices
    index[index == 3] = 6
    for rows in (16, 64):
        order, tiles = (tensor.cpu() for tensor in plan_tiles(index.to(device), 7, rows))
        assert torch.equal(order.long(), index.flatten().argsort(stable=True))
        found = [tile for tile in tiles.tolist() if tile[0] >= 0]
        assert [tile[0] for tile in tiles.tolist()] == [tile[0] for tile in found] + [-1] * (
            len(tiles) - len(found)
        )
        covered = [place for _, first, end in found for place in range(first, end)]
        assert covered == list(range(2 * count))
        assert all(0 < end - first <= rows for _, first, end in found)
        assert all(
            set(index.flatten()[order[first:end].long()].tolist()) == {own} for own, first, end in found
        )


@pytest.mark.parametrize(
    ("choices", "experts", "rows"), [(8, 128, 16), (512, 128, 16), (300, 7, 64), (5, 1, 16)]
)
def test_number_of_tiles_is_the_largest_that_choices_can_need(choices: int, experts: int, rows: int) -> None:
    # One choice for each expert, and the others for one of them, or as many as leave one row of a tile used.
    alone = min(choices, experts)
    counts = [1] * alone
    left = choices - alone
    for number in range(alone):
        more = left // rows * rows if number == 0 else 0
        counts[number] += more
    counts[-1] += left % rows
    needed = sum(-(-count // rows) for count in counts)
    assert needed <= most_tiles(choices, experts, rows) <= needed + 1
    assert most_tiles(choices, experts, rows) <= min(choices, experts + choices // rows)


@pytest.mark.parametrize("share", ["one expert", "one without a token"])
def test_uneven_choices_are_computed(share: str, device: torch.device) -> None:
    values, index, weights = inputs()
    index = torch.zeros_like(index) if share == "one expert" else index % 2 + 1
    plain = experts_of(tiny("Mixtral"))
    given = on(device, (values, index, weights))
    expected_rows = (weights.unsqueeze(-1) * 0).sum(1) + sum(
        weights[:, place : place + 1] * one_choice(plain, values, index[:, place])
        for place in range(index.shape[1])
    )
    torch.testing.assert_close(fused("Mixtral", device)(*given).cpu(), expected_rows, rtol=1e-5, atol=1e-5)


def one_choice(experts: Any, values: Tensor, index: Tensor) -> Tensor:
    """Return the results of one expert for each token."""
    gate_up = torch.einsum("th,toh->to", values, experts.gate_up_proj[index])
    return torch.einsum("ti,thi->th", experts._apply_gate(gate_up), experts.down_proj[index])


def test_token_has_the_same_bits_in_any_batch(device: torch.device) -> None:
    """The batch takes other launch settings, unless results are required to be independent of it."""
    torch.manual_seed(0)
    experts = fused("Qwen3Moe", device, dtype=torch.bfloat16)
    values = torch.randn(150, HIDDEN).bfloat16().to(device)
    scores, index = torch.rand(150, EXPERTS).to(device).topk(CHOSEN)
    assert launch_for(2, EXPERTS, values.dtype, False, False) != launch_for(
        300, EXPERTS, values.dtype, False, False
    )
    experts.batch_invariant = True
    together = experts(values, index, scores)
    for first, end in ((0, 1), (70, 71), (149, 150), (10, 50)):
        assert torch.equal(
            experts(values[first:end], index[first:end], scores[first:end]), together[first:end]
        )


def integers(weight: DenseFormat, bits: int, minima: bool = False) -> GroupedFormat:
    found = rounded_to_integers(weight, bits, 16)
    assert isinstance(found, GroupedFormat)
    if minima:
        least = -torch.rand_like(found.scales) / 8
        return GroupedFormat.of(found.form, found.parameters() | {"minima": least}, found.dtype)
    return found


def float8(weight: DenseFormat) -> WeightFormat:
    """Return a weight in float8 with scales for groups of 24 inputs, of which the last is smaller."""
    whole = rounded_to_float8(weight)
    assert isinstance(whole, GroupedFormat)
    groups = -(-weight.weight.shape[1] // 24)
    scales = whole.scales * (torch.rand(len(whole.scales), groups) + 0.5)
    return GroupedFormat(Form(E4M3, FLOAT, 24), whole.codes, scales, whole.dtype, bias=whole.bias)


def float4(weight: DenseFormat, name: str) -> WeightFormat:
    """Return another weight of the same shape; name: mxfp4 or nvfp4."""
    outputs, inputs = weight.weight.shape
    seed = int(weight.weight.abs().sum() * 1000) % 1000
    return random_weight(name, outputs, inputs, weight.weight.dtype, seed=seed)


QUANTISED = {
    "int4": partial(integers, bits=4), "int4 with minima": partial(integers, bits=4, minima=True),
    "int8": partial(integers, bits=8), "float8": rounded_to_float8, "float8 in groups": float8,
    "mxfp4": partial(float4, name="mxfp4"), "nvfp4": partial(float4, name="nvfp4"),
}  # fmt: skip


@by_kind
@pytest.mark.parametrize("form", QUANTISED)
def test_quantised_experts_stay_so_and_compute_what_dequantised_ones_do(
    kind: str, form: str, device: torch.device
) -> None:
    torch.manual_seed(0)
    experts = experts_of(tiny(kind))
    plain = experts_of(tiny(kind))
    receive_gated(experts, FusedExperts, fuse_dequantisation)
    for name, tensor in list(plain._parameters.items()):
        given = tensor
        if tensor.ndim == 3:
            matrices = tensor.mT.contiguous() if plain.is_transposed else tensor
            stack = StackedFormat(
                [QUANTISED[form](DenseFormat(one)) for one in matrices], plain.is_transposed
            )
            plain._parameters[name] = torch.nn.Parameter(stack.dense(), requires_grad=False)
            given = QuantizedTensor(stack, torch.device("cpu"))
        experts.receive(name, given)
    experts.settle()
    experts._apply_gate = kernel_of_gate(plain.to(device), Setup(TRITON, device, as_loaded))
    held = [format for formats in experts.products.values() for format in formats]
    assert len(held) == 2 and all(isinstance(format, QuantizedFormat) for format in held)
    given = on(device, inputs())
    torch.testing.assert_close(experts.to(device)(*given), plain(*given), rtol=1e-4, atol=1e-4)


def test_weights_are_rounded_while_they_are_received(device: torch.device) -> None:
    layout = partial(after, partial(rounded_to_integers, bits=4, group=16), fuse_dequantisation)
    experts = fused("Mixtral", device, layout, torch.bfloat16)
    dense = fused("Mixtral", device, dtype=torch.bfloat16)
    sizes = [sum(tensor.nbytes for tensor in one.tables) for one in (experts, dense)]
    assert sizes[0] == sizes[1] // 4 + sizes[1] // 8  # a scale of 4 bytes for 16 codes
    given = on(device, inputs(torch.bfloat16))
    difference = (experts(*given) - dense(*given)).float().abs().mean()
    assert 0 < difference < dense(*given).float().abs().mean() / 4


def test_formats_without_a_kernel_are_dequantised(device: torch.device) -> None:
    experts = experts_of(tiny("Mixtral"))
    receive_gated(experts, FusedExperts, fuse_dequantisation)
    shapes = {GATE_UP: (2 * INNER, HIDDEN), DOWN: (HIDDEN, INNER)}
    for name, (outputs, depth) in shapes.items():
        stack = StackedFormat([
            GroupedFormat(
                Form(TENTHS, FLOAT, 16), torch.randint(0, 16, (outputs, depth), dtype=torch.uint8),
                torch.rand(outputs, depth // 16) / 8, torch.float32,
            )
            for _ in range(EXPERTS)
        ])  # fmt: skip
        experts.receive(name, QuantizedTensor(stack, torch.device("cpu")))
    experts.settle()
    assert all(type(format) is DenseFormat for formats in experts.products.values() for format in formats)
    assert experts.to(device)(*on(device, inputs())).isfinite().all()


@by_kind
def test_each_token_gets_the_updates_of_its_adapter(kind: str, device: torch.device) -> None:
    found = result(kind, FusedExperts, device=str(device), add=add_low_rank)
    torch.testing.assert_close(found, expected(kind), rtol=1e-4, atol=1e-4)


def test_parts_of_two_ranks_add_up_to_the_whole(device: torch.device) -> None:
    parts = [
        result(
            "Mixtral", FusedExperts, {GATE_UP: Cut(1, 2, rank, blocks=2), DOWN: Cut(2, 2, rank)},
            str(device), add_low_rank,
        )
        for rank in range(2)
    ]  # fmt: skip
    torch.testing.assert_close(sum(parts), expected("Mixtral"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("launch", tiered([*DENSE.values(), INVARIANT], DENSE[4], INVARIANT, ids=str))
@pytest.mark.parametrize("gate", [None, "silu", "gelu_tanh", "clamped_silu"])
def test_product_is_that_of_each_choice_alone(launch: Any, gate: Any, device: torch.device) -> None:
    """Sizes are no multiples of any tile's, and memory beyond the tensors is NaN."""
    torch.manual_seed(0)
    tokens, chosen, experts, depth, outputs = 50, 3, 5, 70, 76
    index = torch.rand(tokens, experts).topk(chosen).indices.to(device)
    values = torch.full((tokens + 2, depth), torch.nan, device=device)
    values[:tokens] = torch.randn(tokens, depth)
    weight = torch.full((experts * outputs + 9, depth), torch.nan, device=device)
    weight[: experts * outputs] = torch.randn(experts * outputs, depth) / depth**0.5
    bias = torch.randn(experts * outputs, device=device)
    values, weight = values[:tokens], weight[: experts * outputs]
    choices = plan_tiles(index, experts, launch.rows)
    launch = launch._replace(columns=min(64, launch.columns), depth=launch.depth // 4, stages=2)
    found = multiply(values, ExpertWeights(weight, outputs, bias), choices, launch, gate)
    own = weight.view(experts, outputs, depth)[index.flatten()]
    products = torch.einsum("ck,cok->co", values.repeat_interleave(chosen, 0), own)
    products += bias.view(experts, outputs)[index.flatten()]
    if gate is not None:
        (kernel,) = (one for one in TRITON.gates if one.args[0] == gate)
        products = kernel(products)
    torch.testing.assert_close(found, products, rtol=1e-5, atol=1e-5)


def test_host_reads_nothing_of_the_choices(device: torch.device) -> None:
    """The launches of a number of tokens are the same for any choices, so that a graph can hold them."""
    experts, _ = adapted("Mixtral", FusedExperts, device=str(device), add=add_low_rank)
    values, index, weights = on(device, inputs())
    reads = []
    original = Tensor.tolist, Tensor.item

    def refuse(self: Tensor, *_: Any) -> None:
        reads.append(self)

    Tensor.tolist = Tensor.item = refuse  # type: ignore[assignment,method-assign]
    try:
        experts(values, index, weights)
    finally:
        Tensor.tolist, Tensor.item = original  # type: ignore[method-assign]
    assert not reads
