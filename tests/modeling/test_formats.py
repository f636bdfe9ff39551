"""Weight formats: their products, cuts and joins."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.packed import PackedFormat, pack
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.tied import TiedFormat
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.layers.embedding import receive_embeddings
from engine_server.modeling.loader.weights import replace_linears, settle

SIZES = [(48, 144), (576, 3072), (1536, 576), (2048, 512), (4096, 300)]


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_packed_row_is_bitwise_independent_of_the_number_of_rows(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(inputs, outputs)).requires_grad_(False)
    rows = torch.randn(1, 70, inputs)
    expected = linear(rows)
    replace_linears(linear, pack)
    settle(linear)
    assert isinstance(linear[0].format, PackedFormat)
    whole = linear(rows)
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    for count in (1, 2, 3, 8, 17, 33):
        assert torch.equal(linear(rows[:, 30 : 30 + count]), whole[:, 30 : 30 + count]), count


@pytest.mark.transformers
@pytest.mark.parametrize("layout", [as_loaded, pack])
def test_conv1d_becomes_a_linear_layer_with_its_weight_transposed(layout) -> None:
    layer = nn.Sequential(Conv1D(12, 8)).requires_grad_(False)
    values = torch.randn(1, 3, 8)
    expected = layer(values)
    report = replace_linears(layer, layout)
    settle(layer)
    assert report.replaced == {"Conv1D -> Linear": 1}
    torch.testing.assert_close(layer(values), expected)


@pytest.mark.parametrize(("layout", "kind"), [(as_loaded, DenseFormat), (pack, TiedFormat)])
def test_tied_head_multiplies_and_its_embedding_gathers_with_one_format(layout, kind: type) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(20, 8), "head": nn.Linear(8, 20, bias=False)})
    model["head"].weight = model["embed"].weight
    model.requires_grad_(False)
    tokens, values = torch.tensor([[3, 19]]), torch.randn(1, 3, 8)
    expected = model["embed"](tokens), model["head"](values)
    replace_linears(model, layout)
    receive_embeddings(model["embed"])
    settle(model)
    assert model["head"].format is model["embed"].format
    assert isinstance(model["head"].format, kind)
    assert model["head"].weight is model["embed"].weight
    torch.testing.assert_close(model["embed"](tokens), expected[0])
    torch.testing.assert_close(model["head"](values), expected[1])


@pytest.mark.parametrize("pieces", [1, 2, 3, 4])
def test_joined_pieces_of_a_weight_give_the_outputs_of_the_whole(pieces: int) -> None:
    whole = DenseFormat(torch.randn(12, 8), torch.randn(12))
    values = torch.randn(5, 8)
    columns = [whole.shard(Cut(0, pieces, index)) for index in range(pieces)]
    torch.testing.assert_close(DenseFormat.concat(columns).apply(values), whole.apply(values))


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_summed_pieces_of_a_weight_give_the_outputs_of_the_whole(pieces: int) -> None:
    whole = DenseFormat(torch.randn(12, 8), torch.randn(12))
    values = torch.randn(5, 8)
    parts = [whole.shard(Cut(1, pieces, index)) for index in range(pieces)]
    inputs = values.chunk(pieces, dim=-1)
    total = sum(part.apply(own) for part, own in zip(parts, inputs, strict=True))
    torch.testing.assert_close(total, whole.apply(values))


def test_cut_takes_a_piece_of_each_block() -> None:
    gate_up = torch.arange(8).view(1, 8, 1)
    assert Cut(1, 2, 1, blocks=2).of(gate_up).flatten().tolist() == [2, 3, 6, 7]


def test_last_piece_of_an_unequal_cut_is_padded_with_the_last_row() -> None:
    assert Cut(0, 2, 1).of(torch.arange(5)).tolist() == [3, 4, 4]
