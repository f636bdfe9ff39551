"""The products of the C++ kernels, compared with float64 at every instruction level that this CPU supports."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_kernels import needs_kernels
from torch import Tensor

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.codecs import FLOAT, INT4, INT8
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.native import fix_order, native
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.native_integer import NativeIntegerFormat, values_in_group
from engine_server.modeling.formats.packed import PackedFormat
from engine_server.modeling.native import library
from engine_server.modeling.native.levels import library_file

pytestmark = [pytest.mark.usefixtures("level"), needs_kernels]
# Relative to the largest result: rounding of sums in float32, of results in shorter types,
# and of a value between two codes, which such types often have.
SLACK = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 2e-3}
# in, out, group; the last one has a scale for each output alone, and none fills the last block of outputs.
SHAPES = [(64, 48, 16), (96, 33, 32), (96, 40, 48), (192, 70, 64), (384, 5, 128), (576, 100, 576)]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def integers(
    inputs: int, outputs: int, group: int, bits: int, with_minima: bool, dtype: torch.dtype
) -> GroupedFormat:
    """Return random weights with a bias, of which scales differ by factors of a thousand."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    codes = torch.randint(0, 256, (outputs, inputs * bits // 8), dtype=torch.uint8, generator=generator)
    scales = (10 ** (3 * torch.rand(outputs, inputs // group, generator=generator) - 4)).half().float()
    minima = torch.randn(outputs, inputs // group, generator=generator).half() if with_minima else None
    bias = torch.randn(outputs, generator=generator)
    return GroupedFormat(form_of(bits, group), codes, scales, dtype, minima=minima, bias=bias)


def form_of(bits: int, group: int) -> Form:
    return Form(INT4 if bits == 4 else INT8, FLOAT, group)


def values_of(rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, inputs, generator=generator).to(dtype)


def quantised_values(values: Tensor, group: int) -> Tensor:
    """Return values in float64, rounded to 8 bits for each row and group of inputs."""
    groups = values.float().unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups.double() * (127 / largest).double()).round()
    return (codes * (largest / 127).double()).flatten(-2)


def weights_of(format: GroupedFormat) -> Tensor:
    return format.to(torch.device("cpu"), torch.float64).dense()


@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("with_minima", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_integer_product_equals_float64(inputs, outputs, group, bits, with_minima, dtype) -> None:
    format = integers(inputs, outputs, group, bits, with_minima, dtype)
    product = native(format)
    assert isinstance(product, NativeIntegerFormat)
    for rows in (1, 2, 7, 33):
        values = values_of(rows, inputs, dtype)
        exact = (
            quantised_values(values, values_in_group(group, bits)) @ weights_of(format).T
            + format.bias.double()
        )
        output = product.apply(values).double()
        assert (output - exact).abs().max() <= SLACK[dtype] * exact.abs().max()


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("bits", [4, 8])
def test_integer_product_holds_the_largest_sums_of_a_group(bits: int, rows: int, sign: int) -> None:
    codes = torch.full((40, 96 * bits // 8), 255, dtype=torch.uint8)
    ones, zeros = torch.ones(40, 3), torch.zeros(40, 3)
    product = native(GroupedFormat(form_of(bits, 32), codes, ones, torch.float32, minima=zeros))
    output = product.apply(torch.full((rows, 96), 127.0 * sign))
    assert torch.equal(output, torch.full((rows, 40), 96 * 127.0 * sign * (2**bits - 1)))


@pytest.mark.parametrize("bits", [4, 8])
def test_integer_product_differs_from_its_weights_in_float64_by_the_rounding_of_values_alone(
    bits: int,
) -> None:
    format = integers(192, 70, 64, bits, True, torch.float32)
    values, weights = values_of(9, 192, torch.float32), weights_of(format)
    steps = values.unflatten(1, (-1, 64)).abs().amax(-1).double() / 127
    bound = steps.repeat_interleave(64, 1) @ weights.abs().T / 2
    difference = native(format).apply(values).double() - values.double() @ weights.T - format.bias.double()
    assert (difference.abs() <= bound * 1.001).all()


@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(("bits", "with_minima"), [(4, True), (4, False), (8, False)])
def test_row_of_an_integer_product_is_bitwise_independent_of_others(
    threads, bits, with_minima, dtype
) -> None:
    product = native(integers(576, 300, 32, bits, with_minima, dtype))
    values = values_of(64, 576, dtype)
    together = product.apply(values)
    order = torch.randperm(64)
    assert torch.equal(product.apply(values[order]), together[order])
    for count in (1, 2, 3, 5, 15, 16, 17):
        assert torch.equal(product.apply(values[20 : 20 + count]), together[20 : 20 + count])


@pytest.mark.parametrize("with_minima", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_integer_products_have_the_same_bits_at_all_levels_with_avx512(
    inputs, outputs, group, bits, with_minima, level
) -> None:
    plain = library_file("avx512")
    if level.startswith("avx2") or not plain.exists():
        pytest.skip("compares the kernels for AVX-512 with others that round alike")
    product = native(integers(inputs, outputs, group, bits, with_minima, torch.float32))
    for rows in (1, 15, 16, 17, 40):
        values = values_of(rows, inputs, torch.float32)
        output = product.apply(values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "library_file", lambda level: plain)
            library.kernels.cache_clear()
            assert torch.equal(product.apply(values), output)
        library.kernels.cache_clear()


@pytest.mark.parametrize("rows", [12, 40])
def test_integer_products_are_bitwise_equal_with_one_and_two_threads(rows: int) -> None:
    product, values = (
        native(integers(576, 1000, 64, 4, True, torch.float32)),
        values_of(rows, 576, torch.float32),
    )
    before, outputs = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        outputs.append(product.apply(values))
    torch.set_num_threads(before)
    assert torch.equal(*outputs)


def test_nan_in_one_row_of_an_integer_product_stays_there() -> None:
    product, values = native(integers(96, 33, 32, 8, False, torch.float32)), values_of(5, 96, torch.float32)
    expected = product.apply(values)
    values[2, 40] = torch.nan
    output = product.apply(values)
    assert output[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(output[others], expected[others])


def test_integer_product_reads_strided_values_and_writes_its_rows_alone() -> None:
    format = integers(96, 33, 32, 4, True, torch.float32)
    product, values = native(format), values_of(5, 96, torch.float32)
    around = torch.full((7, 128), torch.nan)
    around[1:6, 16:112] = values
    output = torch.full((7, 33), torch.nan)
    rows = around[1:6, 16:112]
    assert torch.equal(product.apply(rows), product.apply(values))
    library.kernels().multiply_integer(
        library.PRODUCT_DTYPES[torch.float32], output[1].data_ptr(), rows.data_ptr(), rows.stride(0),
        product.codes.data_ptr(), product.scales.data_ptr(), product.minima.data_ptr(), product.bias.data_ptr(),
        5, 96, 33, 32, 4, product.unit,
    )  # fmt: skip
    assert torch.equal(output[1:6], product.apply(values))
    assert output[[0, 6]].isnan().all()


def test_integer_product_of_zeros_is_the_bias() -> None:
    format = integers(96, 33, 32, 8, True, torch.float32)
    assert torch.equal(native(format).apply(torch.zeros(2, 96)), format.bias.expand(2, -1))
    assert native(format).apply(torch.zeros(0, 96)).shape == (0, 33)


@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(("bits", "with_minima"), [(4, True), (4, False), (8, False)])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SHAPES)
def test_gathered_rows_equal_dequantised_weights(inputs, outputs, group, bits, with_minima, dtype) -> None:
    format = integers(inputs, outputs, group, bits, with_minima, dtype)
    rows = torch.tensor([[0, outputs - 1, 2], [1, 1, outputs // 2]])
    torch.testing.assert_close(native(format).gather(rows), format.gather(rows), atol=1e-6, rtol=SLACK[dtype])


@pytest.mark.parametrize(("inputs", "group", "dtype"), [(40, 8, torch.float32), (24, 8, torch.bfloat16)])
def test_integer_weights_that_kernels_do_not_support_are_dequantised(inputs, group, dtype) -> None:
    format, values = integers(inputs, 32, group, 8, False, dtype), values_of(3, inputs, dtype)
    product = native(format)
    assert not isinstance(product, NativeIntegerFormat)
    expected = values.double() @ weights_of(format).T + format.bias.double()
    torch.testing.assert_close(product.apply(values).double(), expected, atol=0.1, rtol=0.02)


def dense(inputs: int, outputs: int, dtype: torch.dtype, with_bias: bool = True) -> DenseFormat:
    generator = torch.Generator().manual_seed(inputs + outputs)
    bias = torch.randn(outputs, generator=generator).to(dtype) if with_bias else None
    return DenseFormat(torch.randn(outputs, inputs, generator=generator).to(dtype), bias)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (50, 33), (64, 64), (576, 100), (1538, 31)])
def test_floating_product_equals_float64(inputs: int, outputs: int, dtype, with_bias: bool) -> None:
    format = dense(inputs, outputs, dtype, with_bias)
    product = NativeFloatingFormat(format)
    for rows in (0, 1, 2, 4, 13, 37, 130):
        values = values_of(rows, inputs, dtype)
        exact = values.double() @ format.weight.double().T + (
            0 if format.bias is None else format.bias.double()
        )
        terms = values.double().abs() @ format.weight.double().abs().T
        slack = torch.finfo(dtype).eps * exact.abs() + 1e-5 * terms
        assert ((product.apply(values).double() - exact).abs() <= slack).all()


@given(
    rows=st.integers(1, 70), pairs=st.integers(1, 100), outputs=st.integers(1, 100), with_bias=st.booleans(),
    gap=st.integers(0, 40), chosen=st.data(),
)  # fmt: skip
def test_bfloat16_product_of_any_shape_equals_float64_and_its_rows_alone(
    rows: int, pairs: int, outputs: int, with_bias: bool, gap: int, chosen: st.DataObject
) -> None:
    format = dense(2 * pairs, outputs, torch.bfloat16, with_bias)
    product = NativeFloatingFormat(format)
    values = values_of(rows, 2 * pairs + gap, torch.bfloat16)[:, gap // 2 : gap // 2 + 2 * pairs]
    output = product.apply(values)
    bias = 0 if format.bias is None else format.bias.double()
    exact = values.double() @ format.weight.double().T + bias
    terms = values.double().abs() @ format.weight.double().abs().T
    slack = torch.finfo(torch.bfloat16).eps * exact.abs() + 1e-5 * terms
    assert ((output.double() - exact).abs() <= slack).all()
    first = chosen.draw(st.integers(0, rows - 1))
    end = chosen.draw(st.integers(first + 1, rows))
    assert torch.equal(product.apply(values[first:end]), output[first:end])


@pytest.mark.parametrize("dtype", SLACK)
def test_row_of_a_floating_product_is_bitwise_independent_of_others(threads, dtype) -> None:
    # Products cancel, so that results are the rounding errors of sums, which depend on the order.
    half, values = dense(288, 300, dtype).weight, values_of(64, 288, dtype).repeat(1, 2)
    product = NativeFloatingFormat(DenseFormat(torch.cat((half, -half), 1), None))
    together = product.apply(values)
    assert together.count_nonzero() > together.numel() / 2
    order = torch.randperm(64)
    assert torch.equal(product.apply(values[order]), together[order])
    assert torch.equal(product.apply(values.repeat(4, 1)), together.repeat(4, 1))
    for count in (1, 2, 3, 5, 13, 17):
        assert torch.equal(product.apply(values[20 : 20 + count]), together[20 : 20 + count])


@pytest.mark.parametrize("dtype", SLACK)
def test_floating_products_are_bitwise_equal_with_one_and_two_threads(dtype) -> None:
    product, values = NativeFloatingFormat(dense(576, 1000, dtype)), values_of(12, 576, dtype)
    before, outputs = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        outputs.append(product.apply(values))
    torch.set_num_threads(before)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("dtype", SLACK)
def test_floating_product_reads_strided_values_and_writes_its_rows_alone(dtype) -> None:
    product, values = NativeFloatingFormat(dense(96, 33, dtype)), values_of(5, 96, dtype)
    around = torch.full((7, 128), torch.nan, dtype=dtype)
    around[1:6, 16:112] = values
    rows, output = around[1:6, 16:112], torch.full((7, 33), torch.nan, dtype=dtype)
    library.kernels().multiply_floating(
        library.PRODUCT_DTYPES[dtype], output[1].data_ptr(), rows.data_ptr(), rows.stride(0), product.weight.data_ptr(),
        product.bias.data_ptr(), 5, 96, 33,
    )  # fmt: skip
    assert torch.equal(output[1:6], product.apply(values))
    assert torch.equal(product.apply(rows), product.apply(values))
    assert output[[0, 6]].isnan().all()


@pytest.mark.parametrize("dtype", SLACK)
def test_nan_in_one_row_of_a_floating_product_stays_there(dtype) -> None:
    product, values = NativeFloatingFormat(dense(96, 33, dtype)), values_of(5, 96, dtype)
    expected = product.apply(values)
    values[2, 95] = torch.nan
    output = product.apply(values)
    assert output[2].isnan().all()
    assert torch.equal(output[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (576, 100)])
def test_gathered_rows_of_a_floating_weight_are_its_rows(inputs: int, outputs: int, dtype) -> None:
    format, rows = dense(inputs, outputs, dtype), torch.tensor([[0, outputs - 1], [outputs // 2, 0]])
    assert torch.equal(NativeFloatingFormat(format).gather(rows), format.gather(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_product_of_single_inputs_takes_an_odd_number_of_them(dtype) -> None:
    format, values = dense(33, 20, dtype), values_of(3, 33, dtype)
    torch.testing.assert_close(NativeFloatingFormat(format).apply(values), format.apply(values))
    assert torch.equal(NativeFloatingFormat(format).gather(torch.arange(20)), format.weight)


def test_bfloat16_weights_with_an_odd_number_of_inputs_are_multiplied_by_onednn() -> None:
    format, values = dense(33, 20, torch.bfloat16), values_of(3, 33, torch.bfloat16)
    torch.testing.assert_close(native(format).apply(values), format.apply(values), atol=0.1, rtol=0.02)


@pytest.mark.parametrize(
    ("dtype", "tiles", "level", "left"),
    [
        (torch.bfloat16, False, "avx512-vnni", False),
        (torch.bfloat16, True, "avx512-vnni", True),
        (torch.bfloat16, True, "amx", False),
        (torch.float16, False, "avx512-vnni", False),
        (torch.float16, True, "amx", True),
        (torch.float32, True, "amx", False),
    ],
)
def test_dense_weights_are_left_to_onednn_where_it_alone_multiplies_by_tiles(
    dtype, tiles: bool, level: str, left: bool, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": tiles, "amx_fp16": tiles})
    monkeypatch.setattr(library.kernels(), "level", level)
    # Which of the two depends on what oneDNN can pack on this machine's CPU.
    kinds = (PackedFormat, DenseFormat) if left else (NativeFloatingFormat,)
    assert isinstance(native(dense(64, 32, dtype)), kinds)
    assert isinstance(fix_order(dense(64, 32, dtype)), NativeFloatingFormat)


def test_fixed_order_layout_dequantises_integers_that_kernels_do_not_support() -> None:
    assert isinstance(fix_order(integers(64, 32, 16, 8, False, torch.float32)), NativeIntegerFormat)
    assert isinstance(fix_order(integers(40, 32, 8, 8, False, torch.float32)), NativeFloatingFormat)


@pytest.mark.parametrize(("dtype", "inputs"), [(torch.float64, 64), (torch.bfloat16, 33)])
def test_fixed_order_layout_refuses_weights_without_a_kernel(dtype, inputs: int) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"no product for a weight of {str(dtype)[6:]}"):
        fix_order(dense(inputs, 32, dtype))


def test_quantised_weights_without_a_kernel_are_multiplied_as_dense_ones_of_their_dtype() -> None:
    assert isinstance(native(integers(24, 32, 8, 8, False, torch.bfloat16)), NativeFloatingFormat)
    assert isinstance(native(integers(24, 32, 8, 8, False, torch.float32)), NativeFloatingFormat)
