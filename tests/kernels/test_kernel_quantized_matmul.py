"""Products with quantised weights, against the dequantised weights in float64."""

import math

import pytest
import torch
from torch import Tensor
from weight_forms import random_weight

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT, INT4, INT8, packed_codes
from engine_server.modeling.formats.fixed_order import fix_order
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.joined import join
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.triton_quantized import fuse_dequantisation
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.kernels import dequantise, quantized_matmul, quantized_row

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Rows, inputs, outputs and inputs of a group: decode and prompts, tails of every tile, groups smaller than a tile.
SHAPES = [
    (1, 32, 8, 32),
    (5, 192, 70, 64),
    (70, 384, 3, 128),
    (17, 160, 65, 32),
    (2, 46, 20, 46),
    (3, 300, 9, 300),
]


def integers(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], bits: int, minima: bool):
    _rows, inputs, outputs, group = shape
    codes = torch.randint(0, 1 << bits, (outputs, inputs), dtype=torch.uint8)
    scales = (torch.rand(outputs, inputs // group) + 0.5) / (1 << bits - 1) / inputs**0.5
    least = -torch.rand_like(scales) / inputs**0.5 if minima else None
    bias = torch.randn(outputs).to(dtype)
    form = Form(INT4 if bits == 4 else INT8, FLOAT, group)
    packed = packed_codes(codes) if bits == 4 else codes
    return GroupedFormat(form, packed, scales, dtype, minima=least, bias=bias).to(device, dtype)


def float8(device: torch.device, dtype: torch.dtype, inputs: int, outputs: int, group: int) -> GroupedFormat:
    codes = torch.randn(outputs, inputs).to(torch.float8_e4m3fn).view(torch.uint8)
    bias = torch.randn(outputs).to(dtype)
    scales = (torch.rand(outputs, -(-inputs // group)) + 0.5) / inputs**0.5
    return GroupedFormat(Form(E4M3, FLOAT, group), codes, scales, dtype, bias=bias).to(device, dtype)


def float4(device: torch.device, dtype: torch.dtype, inputs: int, outputs: int, name: str) -> GroupedFormat:
    """name: mxfp4 or nvfp4, of which weights are of the size of the others'."""
    weight = random_weight(name, outputs, inputs, dtype, bias=True)
    tensors: dict[str, Tensor] = {**weight.parameters()}
    if weight.factors is None:
        tensors["scales"] = weight.scales - round(math.log2(inputs) / 2)
    else:
        tensors["factors"] = weight.factors / inputs**0.5
    return GroupedFormat.of(weight.form, tensors, dtype).to(device, dtype)


def formats(device: torch.device, inputs: int, outputs: int) -> list[QuantizedFormat]:
    """Return weights in each format, with groups smaller than a step of the kernels, as large, and larger."""
    dtype = torch.float16  # which Triton's interpreter rounds to as a GPU does, unlike bfloat16
    return [
        integers(device, dtype, (1, inputs, outputs, 32), 4, False),
        integers(device, dtype, (1, inputs, outputs, 128), 4, True),
        integers(device, dtype, (1, inputs, outputs, 16), 8, True),
        integers(device, dtype, (1, inputs, outputs, inputs), 8, False),
        *(float8(device, dtype, inputs, outputs, group) for group in (128, inputs)),
        *(float4(device, dtype, inputs, outputs, name) for name in ("mxfp4", "nvfp4")),
    ]


def check(format: QuantizedFormat, values: Tensor) -> None:
    out = fuse_dequantisation(format).apply(values)
    assert out.dtype == values.dtype
    assert format.bias is not None
    expected = values.double() @ format.dense().double().T + format.bias.double()
    tolerance = TOLERANCE[values.dtype]
    if len(values) > quantized_matmul.MOST_ROWS:
        tolerance *= 2  # a library may round before it adds the bias
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("minima", [False, True])
def test_product_with_integers_equals_that_of_the_dequantised_weight(
    device: torch.device, dtype: torch.dtype, bits: int, minima: bool
) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        values = torch.randn(shape[0], shape[1], device=device).to(dtype)
        check(integers(device, dtype, shape, bits, minima), values)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_product_with_float8_equals_that_of_the_dequantised_weight(
    device: torch.device, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    for rows, inputs, outputs, group in [*SHAPES, (4, 200, 10, 128), (2, 51, 7, 16)]:
        check(
            float8(device, dtype, inputs, outputs, group), torch.randn(rows, inputs, device=device).to(dtype)
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_product_with_float4_equals_that_of_the_dequantised_weight(
    device: torch.device, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(0)
    for rows, inputs, outputs in [(1, 32, 8), (5, 192, 70), (70, 384, 3), (17, 160, 65), (200, 96, 20)]:
        check(
            float4(device, dtype, inputs, outputs, name), torch.randn(rows, inputs, device=device).to(dtype)
        )


@pytest.mark.parametrize("rows", [1, 2, 200])
@pytest.mark.parametrize("scales", ["powers of two", "float8"])
def test_every_float4_code_and_scale_has_its_value(device: torch.device, rows: int, scales: str) -> None:
    """Each output has one scale, and inputs have the codes in turn: the product with an input is a weight."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 2)
    every = torch.arange(256, dtype=torch.uint8).view(256, 1)
    form, factors = Form(E2M1, E8M0, 32), None
    if scales == "float8":
        every[every & 0x7F == 0x7F] = 0
        form, factors = Form(E2M1, E4M3, 32), torch.rand(256, 1)
    else:
        every.clamp_(max=250)  # whose products are finite
    format = GroupedFormat(form, packed_codes(codes), every, torch.float32, factors=factors)
    format = format.to(device, torch.float32)
    product = fuse_dequantisation(format)
    for place in range(16):
        values = torch.zeros(rows, 32, device=device)
        values[:, place] = 1
        expected = format.dense()[:, place].expand(rows, -1)
        torch.testing.assert_close(product.apply(values), expected, rtol=1e-6, atol=0)


@pytest.fixture
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_matmul, "processors", lambda device: 132)


@pytest.mark.usefixtures("many_processors")
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 65, 200])
def test_products_of_any_number_of_rows_have_the_same_results(device: torch.device, rows: int) -> None:
    """The inputs have a tail in the last step of every kernel, and are cut into parts."""
    torch.manual_seed(0)
    values = torch.randn(rows, 1152, device=device).half()
    assert quantized_matmul.tiling(rows, 70, 1152, 128, 2, 132).parts == 2
    for format in formats(device, 1152, 70):
        check(format, values)


def test_many_rows_are_multiplied_with_one_slice_of_the_weight_after_another(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(dequantise, "DENSE_BYTES", 30 * 128 * 2)
    for format in formats(device, 128, 70):
        check(format, torch.randn(65, 128, device=device).half())


@pytest.mark.usefixtures("many_processors")
@pytest.mark.parametrize("rows", [1, 2, 64, 65])
def test_products_of_the_same_rows_are_the_same_bits(device: torch.device, rows: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(rows, 1152, device=device).half()
    for format in formats(device, 1152, 10)[1:5:3]:
        product = fuse_dequantisation(format)
        assert torch.equal(product.apply(values), product.apply(values))


@pytest.mark.parametrize("rows", [1, 2, 64, 65])
def test_captured_products_repeat_their_results(device: torch.device, rows: int) -> None:
    """Parts of K and dense weights are memory of the graph, which needs no preparation between replays."""
    if device.type == "cpu":
        pytest.skip("needs a GPU")
    torch.manual_seed(0)
    values = torch.randn(rows, 4096, device=device).half()
    for format in (
        integers(device, torch.float16, (rows, 4096, 1024, 128), 4, True),
        float8(device, torch.float16, 4096, 1024, 4096),
    ):
        product = fuse_dequantisation(format)
        expected = product.apply(values)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = product.apply(values)
        for _ in range(3):
            out.zero_()
            graph.replay()
            assert torch.equal(out, expected)


def test_order_of_sums_is_not_declared_as_independent_of_the_number_of_rows(device: torch.device) -> None:
    """A row alone, rows in tiles and many rows are summed in different orders."""
    for format in formats(device, 128, 4):
        assert not fuse_dequantisation(format).fixed_order
        with pytest.raises(UnsupportedModelError, match="not quantized"):
            fix_order(format)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("inputs", "group"), [(36, 36), (40, 8)])
def test_one_row_is_multiplied_by_tiles_if_words_or_groups_do_not_fit(
    device: torch.device, bits: int, inputs: int, group: int
) -> None:
    torch.manual_seed(0)
    assert not quantized_row.multiplies_words(inputs, group, 4)
    check(
        integers(device, torch.float32, (1, inputs, 5, group), bits, True),
        torch.randn(1, inputs, device=device),
    )


@pytest.mark.parametrize("rows", [1, 2, 65])
@pytest.mark.parametrize("inputs", [1, 4])
def test_every_float8_code_has_its_value(device: torch.device, rows: int, inputs: int) -> None:
    """The last input has all codes, in a word of four codes or without one; the others are zero."""
    codes = torch.zeros(256, inputs, dtype=torch.uint8)
    codes[:, inputs - 1] = torch.arange(256)
    format = GroupedFormat(Form(E4M3, FLOAT, inputs), codes, torch.ones(256, 1), torch.float32)
    format = format.to(device, torch.float32)
    out = fuse_dequantisation(format).apply(torch.ones(rows, inputs, device=device))
    expected = format.dense()[:, inputs - 1].expand(rows, -1)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", [4, 8])
def test_memory_beyond_the_tensors_is_not_used(device: torch.device, bits: int) -> None:
    """Values and scales are followed by NaN, and stay out of the product."""
    torch.manual_seed(0)
    format = integers(device, torch.float32, (3, 160, 20, 32), bits, True)
    values = torch.full((9, 160), torch.nan, device=device)
    values[:3] = torch.randn(3, 160)
    for name in ("scales", "minima"):
        padded = torch.full((30, 5), torch.nan, device=device)
        padded[:20] = getattr(format, name)
        setattr(format, name, torch.nn.Parameter(padded[:20], requires_grad=False))
    check(format, values[:3])


def test_parts_of_ranks_and_joined_weights_are_multiplied_in_place(device: torch.device) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 3, 128, device=device)
    for whole in (
        integers(device, torch.float32, (6, 128, 24, 64), 4, True),
        float8(device, torch.float32, 128, 24, 128),
        *(float4(device, torch.float32, 128, 24, name) for name in ("mxfp4", "nvfp4")),
    ):
        expected = fuse_dequantisation(whole).apply(values)
        columns = join([whole.shard(Cut(0, 2, rank)) for rank in range(2)])
        torch.testing.assert_close(columns.arranged(fuse_dequantisation).apply(values), expected)
        parts = [whole.shard(Cut(1, 4, rank)).arranged(fuse_dequantisation) for rank in range(4)]
        summed = sum(part.apply(own) for part, own in zip(parts, values.chunk(4, -1), strict=True))
        torch.testing.assert_close(summed, expected, rtol=1e-5, atol=1e-5)


def test_layout_keeps_the_tensors_of_the_format(device: torch.device) -> None:
    for format in (
        integers(device, torch.float32, (1, 64, 8, 32), 4, False),
        float8(device, torch.float32, 64, 8, 64),
        *(float4(device, torch.float32, 64, 8, name) for name in ("mxfp4", "nvfp4")),
    ):
        arranged = fuse_dequantisation(format).parameters()
        own = format.parameters()
        assert arranged.keys() == own.keys()
        assert all(arranged[name] is own[name] for name in own)
