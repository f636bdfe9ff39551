"""Tables of rotary embeddings compared with transformers' modules, bit for bit."""

from typing import Any

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, SIZES, Architecture
from hypothesis import given
from hypothesis import strategies as st
from tiers import tiered
from torch import nn

from engine_server.modeling.layers import rope_table
from engine_server.modeling.layers.rope_table import ROPE, RopeTable

pytestmark = pytest.mark.transformers

POSITIONS = 300
DTYPES = [torch.float32, torch.bfloat16]
# The type of layer for each kind of rope that gemma 3 has.
KINDS = {"gemma 3": ["sliding_attention", "full_attention"]}
TABULATED = [
    "llama", "llama 3", "llama, linear", "llama, yarn", "qwen3", "gemma 3", "phi", "gpt-neox", "falcon, new", "olmo2",
    "stablelm", "cohere", "deepseek-v3", "gpt-oss",
]  # fmt: skip


def rope_of(architecture: Architecture, **settings: Any) -> Any:
    kind = getattr(transformers, architecture.model)
    model = kind(kind.config_class(**SIZES | architecture.settings | settings))
    return next(module for module in model.modules() if type(module).__name__.endswith(ROPE))


ROPES = {one.name: rope_of(one) for one in ARCHITECTURES if one.name in TABULATED}


@pytest.mark.parametrize(
    "name", tiered(TABULATED, "llama", "llama, yarn", "gemma 3", "gpt-neox", "deepseek-v3")
)
@given(
    positions=st.lists(st.integers(0, POSITIONS - 1), min_size=1, max_size=40), dtype=st.sampled_from(DTYPES)
)
def test_table_has_the_bits_of_the_rope(name: str, positions: list[int], dtype: torch.dtype) -> None:
    rope, x = ROPES[name], torch.empty(0, dtype=dtype)
    table = RopeTable.of(rope, POSITIONS, x)
    assert table is not None
    for kind in KINDS.get(name, [None]):
        given, kinds = torch.tensor([positions]), [] if kind is None else [kind]
        for found, expected in zip(table(x, given, *kinds), rope(x, given, *kinds), strict=True):
            assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_long_table_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope_table, "CHUNK", 64)
    table = RopeTable.of(ROPES["llama"], POSITIONS, torch.empty(0))
    assert table is not None
    positions = torch.arange(POSITIONS).unsqueeze(0)
    expected = ROPES["llama"](torch.empty(0), positions)
    assert all(map(torch.equal, table(torch.empty(0), positions), expected))


def test_rope_whose_table_would_be_too_large_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    dim, positions = 8, 64
    monkeypatch.setattr(rope_table, "MOST_BYTES", 2 * dim * positions * 4)
    assert RopeTable.of(ROPES["llama"], positions, torch.empty(0)) is not None
    assert RopeTable.of(ROPES["llama"], positions + 1, torch.empty(0)) is None


def test_rope_of_complex_numbers_is_left() -> None:
    deepseek = next(one for one in ARCHITECTURES if one.name == "deepseek-v2")
    assert RopeTable.of(rope_of(deepseek), POSITIONS, torch.empty(0)) is None


def test_rope_that_depends_on_the_longest_position_is_left() -> None:
    dynamic = next(one for one in ARCHITECTURES if one.name == "llama, dynamic")
    assert RopeTable.of(rope_of(dynamic), POSITIONS, torch.empty(0)) is None


def test_positions_of_three_dimensions_and_other_dtypes_are_computed_by_the_rope() -> None:
    class Rope(nn.Module):
        rope_type = "default"

        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            angles = position_ids[..., None].to(x.dtype) * torch.ones(4, dtype=x.dtype)
            return angles.cos(), angles.sin()

    table = RopeTable.of(Rope(), POSITIONS, torch.empty(0))
    assert table is not None
    beyond = torch.full((3, 1, 2), 2 * POSITIONS)
    assert table(torch.empty(0), beyond)[0].shape == (3, 1, 2, 4)
    assert table(torch.empty(0, dtype=torch.bfloat16), beyond[0])[0].dtype == torch.bfloat16


def test_model_reads_attributes_of_the_rotary_embedding_from_its_table() -> None:
    rope = rope_of(next(one for one in ARCHITECTURES if one.name == "llama"))
    table = RopeTable.of(rope, POSITIONS, torch.empty(0))
    assert table is not None
    assert table.config is rope.config
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = table.no_such_attribute
