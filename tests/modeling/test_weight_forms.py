"""Every form of quantised weights on every kind of device: rows, cuts, joins and products, beside dequantised weights.

Products of integers by our kernels round the values; those with floats are rounded as sums in float32 are.
"""

from collections.abc import Callable

import pytest
import torch
from native_kernels import needs_kernels
from torch import Tensor
from weight_forms import FORMS, random_weight

from engine_server.modeling.formats.codecs import INT4, INT8
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.joined import JoinedFormat, join
from engine_server.modeling.formats.native import fix_order, native
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.products import ProductTable, as_loaded
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.tied import tied
from engine_server.modeling.formats.weight_format import Cut, WeightFormat

OUTPUTS, INPUTS = 48, 128
LAYOUTS = {"as loaded": as_loaded, "packed": pack}
NATIVE = {"native": native, "native, fixed order": fix_order}
by_form = pytest.mark.parametrize("form", FORMS)
# Gives the product of values with a weight in a layout.
Multiply = Callable[[GroupedFormat, ProductTable, Tensor], Tensor]


def values(rows: int) -> Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(rows))


def whole(weight: GroupedFormat, layout: ProductTable, given: Tensor) -> Tensor:
    return weight.arranged(layout).apply(given)


def cut_along_outputs(weight: GroupedFormat, layout: ProductTable, given: Tensor) -> Tensor:
    parts = [weight.shard(Cut(0, 2, rank)) for rank in range(2)]
    return torch.cat([part.arranged(layout).apply(given) for part in parts], -1)


def cut_along_inputs(weight: GroupedFormat, layout: ProductTable, given: Tensor) -> Tensor:
    parts = [weight.shard(Cut(1, 2, rank)) for rank in range(2)]
    products = [part.arranged(layout).apply(own) for part, own in zip(parts, given.chunk(2, -1), strict=True)]
    return products[0] + products[1]


def joined(weight: GroupedFormat, layout: ProductTable, given: Tensor) -> Tensor:
    product = join([weight.shard(Cut(0, 3, part)) for part in range(3)])
    assert isinstance(product, GroupedFormat)
    return product.arranged(layout).apply(given)


USES: dict[str, Multiply] = {
    "whole": whole, "cut along outputs": cut_along_outputs, "cut along inputs": cut_along_inputs, "joined": joined
}  # fmt: skip
by_use = pytest.mark.parametrize("use", USES)


def check_products(form: str, use: str, layout: ProductTable, rounds_values: bool) -> None:
    """Compare products with those of the dequantised weight in float64."""
    weight = random_weight(form, OUTPUTS, INPUTS, torch.float32, bias=True)
    assert weight.bias is not None
    dense = weight.dense().double()
    for rows in (1, 5, 40):
        given = values(rows)
        terms = given.double().abs() @ dense.abs().T
        slack = (2e-2 if rounds_values else 1e-5) * terms + 1e-5
        exact = given.double() @ dense.T + weight.bias
        assert ((USES[use](weight, layout, given).double() - exact).abs() <= slack).all()


@by_form
@by_use
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_plain_torch_are_those_of_the_dequantised_weight(
    form: str, use: str, layout: str
) -> None:
    check_products(form, use, LAYOUTS[layout], rounds_values=False)


@needs_kernels
@pytest.mark.usefixtures("level")
@by_form
@by_use
@pytest.mark.parametrize("layout", NATIVE)
def test_products_of_kernels_are_those_of_the_dequantised_weight(form: str, use: str, layout: str) -> None:
    check_products(form, use, NATIVE[layout], FORMS[form].codes in (INT4, INT8))


@needs_kernels
@pytest.mark.usefixtures("level")
@by_form
def test_head_and_embedding_share_one_weight(form: str) -> None:
    weight = random_weight(form, OUTPUTS, INPUTS, torch.float32)
    rows, given = torch.tensor([[0, OUTPUTS - 1], [7, 7]]), values(5)
    for layout in (*LAYOUTS.values(), *NATIVE.values()):
        both = tied(weight, layout)
        # The kernels hold scales of integers in float16.
        slack = 1e-3 if FORMS[form].codes in (INT4, INT8) and layout in NATIVE.values() else 0
        torch.testing.assert_close(both.gather(rows), weight.dense()[rows], rtol=slack, atol=slack)
        torch.testing.assert_close(both.apply(given), weight.arranged(layout).apply(given), rtol=0, atol=0)


@by_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_cuts_and_joins_have_the_bits_of_the_dequantised_weight(form: str, dtype: torch.dtype) -> None:
    weight = random_weight(form, OUTPUTS, INPUTS, dtype)
    dense = weight.dense()
    rows = torch.tensor([[3, 0], [OUTPUTS - 1, 3]])
    assert torch.equal(weight.gather(rows), dense[rows])
    for dim in (0, 1):
        parts = [weight.shard(Cut(dim, 2, rank)) for rank in range(2)]
        assert torch.equal(torch.cat([part.dense() for part in parts], dim), dense)
    others = [weight, random_weight(form, 16, INPUTS, dtype, seed=1)]
    joined = join(others)
    assert isinstance(joined, GroupedFormat)
    assert torch.equal(joined.dense(), torch.cat([one.dense() for one in others]))


@by_form
def test_experts_are_cut_joined_and_dequantised_one_by_one(form: str) -> None:
    gates, ups = (
        StackedFormat([random_weight(form, 16, INPUTS, torch.float32, seed=seed) for seed in seeds])
        for seeds in ((0, 1, 2), (3, 4, 5))
    )
    both = StackedFormat.joined([gates, ups])
    assert both is not None
    assert torch.equal(both.dense(), torch.cat([gates.dense(), ups.dense()], 1))
    given = torch.randn(3, 4, INPUTS)
    torch.testing.assert_close(both.apply(given), given @ both.dense().mT, rtol=1e-4, atol=1e-4)
    for rank in range(2):
        cut = Cut(0, 2, rank, blocks=2)
        part = both.experts[1].shard(cut)
        assert isinstance(part, GroupedFormat)
        assert torch.equal(part.dense(), cut.of(both.experts[1].dense()))


def test_weights_in_different_forms_are_multiplied_separately() -> None:
    parts: list[WeightFormat] = [random_weight(form, 16, INPUTS, torch.float32) for form in FORMS]
    parts.append(DenseFormat(torch.randn(16, INPUTS)))
    found = join(parts)
    assert isinstance(found, JoinedFormat)
    expected = torch.cat([part.apply(values(5)) for part in parts], -1)
    torch.testing.assert_close(found.apply(values(5)), expected)
