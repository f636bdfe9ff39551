"""Products with weights in float8 and float4, compared with float64 at every instruction level of this CPU."""

import pytest
import torch
from native_kernels import needs_kernels
from torch import Tensor

from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.native import fix_order, native
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.native_minifloat import NativeMinifloatFormat
from engine_server.modeling.native import library

pytestmark = [pytest.mark.usefixtures("level"), needs_kernels]
DTYPES = (torch.float32, torch.bfloat16)
NAN = 0x7F
# Sizes of weights: in, out, group. None fills the last block of outputs; a last group of float8 may be smaller.
FLOAT8_SHAPES = [(1, 1, 1), (33, 48, 33), (100, 70, 24), (576, 100, 128)]
FLOAT4_SHAPES = [(32, 1, 32), (96, 33, 32), (576, 70, 32), (64, 48, 16)]


def float8(inputs: int, outputs: int, group: int, dtype: torch.dtype) -> GroupedFormat:
    """Return weights of every number of E4M3, subnormal ones too, with scales that differ by factors of a thousand."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    codes = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8, generator=generator)
    codes[codes & NAN == NAN] = 1
    scales = 10 ** (3 * torch.rand(outputs, -(-inputs // group), generator=generator) - 4)
    bias = torch.randn(outputs, generator=generator)
    return GroupedFormat(Form(E4M3, FLOAT, group), codes, scales, dtype, bias=bias)


def float4(inputs: int, outputs: int, group: int, dtype: torch.dtype) -> GroupedFormat:
    generator = torch.Generator().manual_seed(inputs + outputs)
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(115, 130, (outputs, inputs // group), dtype=torch.uint8, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    return GroupedFormat(Form(E2M1, E8M0, group), codes, exponents, dtype, bias=bias)


def float4_with_float8(inputs: int, outputs: int, group: int, dtype: torch.dtype) -> GroupedFormat:
    """Return weights with scales of every number of E4M3, and factors that differ by a thousand."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, (outputs, inputs // group), dtype=torch.uint8, generator=generator)
    scales[scales & NAN == NAN] = 1
    factors = 10 ** (3 * torch.rand(outputs, 1, generator=generator) - 5)
    bias = torch.randn(outputs, generator=generator)
    return GroupedFormat(Form(E2M1, E4M3, group), codes, scales, dtype, factors=factors, bias=bias)


MAKERS = {"float8": float8, "float4": float4, "float4 with float8": float4_with_float8}
CASES = [("float8", *shape) for shape in FLOAT8_SHAPES]
CASES += [(kind, *shape) for kind in ("float4", "float4 with float8") for shape in FLOAT4_SHAPES]
by_kind = pytest.mark.parametrize("kind", MAKERS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def weights_of(format: GroupedFormat) -> Tensor:
    """Return the exact weights in float64."""
    return format.to(torch.device("cpu"), torch.float64).dense()


def values_of(rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).to(dtype)


@by_dtype
@pytest.mark.parametrize(("kind", "inputs", "outputs", "group"), CASES)
def test_product_equals_float64(kind: str, inputs: int, outputs: int, group: int, dtype: torch.dtype) -> None:
    format = MAKERS[kind](inputs, outputs, group, dtype)
    product, weights = native(format), weights_of(format)
    assert isinstance(product, NativeMinifloatFormat)
    for rows in (0, 1, 2, 13, 37, 130):
        values = values_of(rows, inputs, dtype)
        exact = values.double() @ weights.T + format.bias.double()
        terms = values.double().abs() @ weights.abs().T
        slack = torch.finfo(dtype).eps * exact.abs() + 1e-5 * terms + 1e-6
        assert ((product.apply(values).double() - exact).abs() <= slack).all()


@by_kind
def test_weights_are_multiplied_exactly(kind: str) -> None:
    """Multiply by the identity, which adds nothing but zeros to each weight."""
    format = MAKERS[kind](64, 256, 32, torch.float32).with_bias(None)
    if format.form.codes is E4M3:
        every = torch.arange(256, dtype=torch.uint8)
        every[every & NAN == NAN] = 0
        codes = every[:, None].expand(256, 64).contiguous()
        format = GroupedFormat(format.form, codes, format.scales, torch.float32)
    elif format.form.scales is E8M0:
        format.scales[0], format.scales[1] = 0, 254
    assert torch.equal(native(format).apply(torch.eye(64)).T, format.dense())


@by_dtype
@by_kind
def test_row_is_bitwise_independent_of_other_rows_and_of_threads(kind: str, dtype: torch.dtype) -> None:
    product, values = native(MAKERS[kind](576, 300, 32, dtype)), values_of(64, 576, dtype)
    together = product.apply(values)
    order = torch.randperm(64)
    assert torch.equal(product.apply(values[order]), together[order])
    for count in (1, 2, 3, 5, 13, 17):
        assert torch.equal(product.apply(values[20 : 20 + count]), together[20 : 20 + count])
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert torch.equal(product.apply(values), together)
    torch.set_num_threads(before)


@by_dtype
@by_kind
def test_nan_in_one_row_stays_there(kind: str, dtype: torch.dtype) -> None:
    product, values = native(MAKERS[kind](96, 33, 32, dtype)), values_of(5, 96, dtype)
    expected = product.apply(values)
    values[2, 95] = torch.nan
    output, others = product.apply(values), [0, 1, 3, 4]
    assert output[2].isnan().all()
    assert torch.equal(output[others], expected[others])


@by_dtype
@by_kind
def test_product_reads_strided_values_and_writes_its_rows_alone(kind: str, dtype: torch.dtype) -> None:
    product, values = native(MAKERS[kind](96, 33, 32, dtype)), values_of(5, 96, dtype)
    around = torch.full((7, 128), torch.nan, dtype=dtype)
    around[1:6, 16:112] = values
    rows, output = around[1:6, 16:112], torch.full((7, 33), torch.nan, dtype=dtype)
    library.kernels().multiply_minifloat(
        dtype == torch.bfloat16, output[1].data_ptr(), rows.data_ptr(), rows.stride(0), product.codes.data_ptr(),
        product.scales.data_ptr(), product.bias.data_ptr(), 5, 96, 33, 32, product.bits,
        library.address(product.factors),
    )  # fmt: skip
    assert torch.equal(output[1:6], product.apply(values))
    assert torch.equal(product.apply(rows), product.apply(values))
    assert output[[0, 6]].isnan().all()


@pytest.mark.parametrize(("kind", "bits"), [("float8", 8), ("float4", 4), ("float4 with float8", 4)])
def test_memory_is_that_of_codes_and_scales(kind: str, bits: int) -> None:
    product = native(MAKERS[kind](576, 320, 32, torch.bfloat16).with_bias(None))
    scale_bits = 32 if kind == "float8" else 8
    held = sum(tensor.nbytes for name, tensor in product.parameters().items() if name != "factors")
    assert held == 320 * 576 * (bits + scale_bits / 32) / 8


@by_dtype
@by_kind
def test_fixed_order_layout_keeps_the_weights_quantised(kind: str, dtype: torch.dtype) -> None:
    assert isinstance(fix_order(MAKERS[kind](96, 33, 32, dtype)), NativeMinifloatFormat)


def test_weights_that_kernels_do_not_support_are_dequantised() -> None:
    in_fours = float4(64, 32, 4, torch.float32)
    with_nan = float8(64, 32, 64, torch.float32)
    with_nan.codes[3, 5] = NAN | 0x80
    for format in (in_fours, with_nan):
        assert not isinstance(native(format), NativeMinifloatFormat)
        assert isinstance(fix_order(format), NativeFloatingFormat)
    assert native(with_nan).apply(values_of(2, 64, torch.float32)).isnan().nonzero()[:, 1].tolist() == [3, 3]
    assert not isinstance(native(float8(64, 32, 64, torch.float16)), NativeMinifloatFormat)
