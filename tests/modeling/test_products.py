"""The tables of products: what becomes of a weight in a form that a device knows, and of one that it doesn't."""

import logging

import pytest
import torch

from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight, Weights
from engine_server.modeling.formats.codecs import E8M0, FLOAT, INT8, Codec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.joined import join
from engine_server.modeling.formats.native_integer import PRODUCTS
from engine_server.modeling.formats.packed import PackedFormat, pack
from engine_server.modeling.formats.products import ProductTable, as_loaded
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.loader.room import held_bytes

OUTPUTS, INPUTS, GROUP = 8, 64, 32
# A codec that no device knows, as a new format's is at first.
TENTHS = Codec("tenths", 8, lambda codes: codes.float() / 10)


class Slice:
    """A tensor with the interface of a slice object of safetensors, which is not read."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def get_dtype(self) -> str:
        return self.name


def unknown() -> GroupedFormat:
    codes = torch.randint(0, 256, (OUTPUTS, INPUTS), dtype=torch.uint8)
    return GroupedFormat(
        Form(TENTHS, FLOAT, GROUP), codes, torch.rand(OUTPUTS, INPUTS // GROUP), torch.float32
    )


def stored(form: Form) -> StoredWeight:
    """Return a weight that can't be read."""
    codes = StoredTensor("codes", Slice("U8", (OUTPUTS, INPUTS * form.codes.bits // 8)))
    scales = StoredTensor("scales", Slice("F32", (OUTPUTS, INPUTS // form.group)))

    def build(dtype: torch.dtype) -> GroupedFormat:
        raise AssertionError

    return StoredWeight((OUTPUTS, INPUTS), (codes, scales), form, build)


def test_weight_without_a_product_is_dequantised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, values = unknown(), torch.randn(3, INPUTS)
    expected = values @ weight.dense().T
    for layout in (pack, ProductTable({}, lambda dense: dense)):
        product = weight.arranged(layout)
        assert isinstance(product, PackedFormat | DenseFormat)
        with monkeypatch.context() as patch:
            patch.delattr(GroupedFormat, "dense")
            torch.testing.assert_close(product.apply(values), expected)


def test_weight_of_a_new_codec_is_cut_joined_and_gathered_without_code_of_its_own() -> None:
    weight = unknown()
    for dim in (0, 1):
        parts = [weight.shard(Cut(dim, 4, piece)) for piece in range(4)]
        assert torch.equal(torch.cat([part.dense() for part in parts], dim), weight.dense())
    joined = join([weight.shard(Cut(0, 2, piece)) for piece in range(2)])
    assert isinstance(joined, GroupedFormat) and torch.equal(joined.dense(), weight.dense())
    rows = torch.tensor([[3, 0], [7, 7]])
    assert torch.equal(weight.gather(rows), weight.dense()[rows])


@pytest.mark.parametrize(
    ("form", "dtype", "has_product"),
    [
        (Form(INT8, FLOAT, 32), torch.float32, True),
        (Form(INT8, FLOAT, 8), torch.float32, False),
        (Form(INT8, FLOAT, 32), torch.float64, False),
        (Form(INT8, E8M0, 32), torch.float32, False),
        (Form(TENTHS, FLOAT, 32), torch.float32, False),
    ],
    ids=["known", "group", "dtype", "scales", "codes"],
)
def test_announced_size_is_that_of_codes_only_where_the_device_multiplies_them(
    form: Form, dtype: torch.dtype, has_product: bool, caplog: pytest.LogCaptureFixture
) -> None:
    weight = stored(form)
    weight.dtype = dtype
    weights: Weights = {"layers.0.q_proj.weight": weight}
    caplog.set_level(logging.INFO)
    held = held_bytes(weights, dtype, ProductTable(PRODUCTS, lambda dense: dense), True)
    lines = [record.getMessage() for record in caplog.records]
    as_stored = OUTPUTS * INPUTS + 4 * OUTPUTS * INPUTS // form.group
    if has_product:
        assert held == as_stored and not lines
    else:
        assert held == OUTPUTS * INPUTS * dtype.itemsize
        assert [line.startswith(f"1 weights in {form} are dequantised") for line in lines] == [True]


def test_experts_that_are_not_kept_are_announced_dense() -> None:
    weights: Weights = {"layers.0.mlp.experts.down_proj": stored(Form(INT8, FLOAT, 32))}
    sizes = [held_bytes(weights, torch.float32, as_loaded, formatted) for formatted in (True, False)]
    assert sizes == [OUTPUTS * INPUTS + 4 * OUTPUTS * INPUTS // 32, 4 * OUTPUTS * INPUTS]
