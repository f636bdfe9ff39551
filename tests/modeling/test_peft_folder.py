"""The reader of PEFT's folders: what it reads, and what it refuses."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import (
    DAMAGE,
    UNREAD_DTYPES,
    VALUES,
    check_digest,
    check_missing_and_large_files,
    check_unread_dtype,
    read_damaged,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine_server.modeling.adapters.peft_folder import (
    AdapterError,
    LowRankAdapter,
    read_low_rank_adapter,
)

CONTENT = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
EXPERTS = {"mlp.experts.down_proj": 2, "mlp.experts.gate_up_proj": 3}
ROUTER = "mlp.gate.weight"
KEY = "base_model.model.model.layers.0.self_attn.{}_proj.lora_{}.weight"


def pair(name: str = "q", rank: int = 2) -> dict[str, Tensor]:
    return {KEY.format(name, "A"): torch.ones(rank, 6), KEY.format(name, "B"): torch.ones(8, rank)}


def stacked(wrapped: str, rows: int) -> dict[str, Tensor]:
    """Return the update of a stack of experts, whose numbers show their places."""
    name = f"base_model.model.mlp.experts{wrapped}.lora_{{}}.weight"
    numbers = torch.arange(rows, dtype=torch.float32)
    return {name.format("A"): numbers[:, None].repeat(1, 6), name.format("B"): numbers.repeat(8, 1)}


def read_folder(folder: Path, max_bytes: int = 1 << 20) -> LowRankAdapter:
    return read_low_rank_adapter(folder, 4, max_bytes, EXPERTS | {ROUTER: 1})


def read(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> LowRankAdapter:
    return read_folder(write(folder, CONTENT | settings, tensors))


@pytest.mark.parametrize(
    ("settings", "rank", "factor"),
    [
        ({}, 2, 2.0),
        ({"use_rslora": True}, 2, 4 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 6}}, 2, 3.0),
        ({"alpha_pattern": {"proj": 6}}, 2, 2.0),  # no whole name
        ({"rank_pattern": {r"layers\.0\.self_attn\.q_proj": 4}}, 4, 1.0),
        ({"rank_pattern": {"^model.layers.0.self_attn.q_proj$": 4}}, 4, 1.0),
        ({"rank_pattern": {r".*\.q_proj": 4}}, 4, 1.0),
    ],
)
def test_factors_are_those_of_peft(
    tmp_path: Path, settings: dict[str, Any], rank: int, factor: float
) -> None:
    adapter = read(tmp_path, settings, pair(rank=rank))
    (update,) = adapter.pairs.values()
    assert update.a.shape == (rank, 6) and update.b.shape == (rank, 8)
    torch.testing.assert_close(update.b, torch.full((rank, 8), factor))


def test_stacked_updates_are_those_of_each_expert(tmp_path: Path) -> None:
    """PEFT wraps the experts once for each parameter, gate_up_proj first, and interleaves the columns of B."""
    targets = {"target_parameters": ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"], "lora_alpha": 2}
    adapter = read(tmp_path, targets, stacked("", 4) | stacked(".base_layer", 6))
    assert adapter.pairs.keys() == {
        f"{name}.{number}" for name, count in EXPERTS.items() for number in range(count)
    }
    for name, count in EXPERTS.items():
        for number in range(count):
            a, b = adapter.pairs[f"{name}.{number}"]
            assert a[:, 0].tolist() == [2 * number, 2 * number + 1]
            assert b[:, 0].tolist() == [number, number + count]


@pytest.mark.parametrize(
    ("settings", "rank", "factor"),
    [
        ({}, 2, 2.0),
        ({"use_rslora": True}, 2, 4 / 2**0.5),
        ({"rank_pattern": {r".*\.gate\.weight": 1}}, 1, 4.0),
        ({"alpha_pattern": {"gate.weight": 6}}, 2, 3.0),
        ({"alpha_pattern": {"gate": 6}}, 2, 2.0),  # PEFT matches the name of the parameter
    ],
)
def test_the_factor_of_a_routers_weight_is_that_of_peft(
    tmp_path: Path, settings: dict[str, Any], rank: int, factor: float
) -> None:
    name = "base_model.model.mlp.gate.lora_{}.weight"
    tensors = {name.format("A"): torch.ones(rank, 6), name.format("B"): torch.ones(8, rank)}

    adapter = read(tmp_path, {"target_parameters": ["gate.weight"]} | settings, tensors)

    assert adapter.pairs.keys() == {f"{ROUTER}.0"}
    a, b = adapter.pairs[f"{ROUTER}.0"]
    torch.testing.assert_close(b.T @ a, torch.full((8, 6), rank * factor))


def test_digest_depends_on_both_files(tmp_path: Path) -> None:
    check_digest(tmp_path, read_folder, CONTENT, [pair(), pair("k")])


@pytest.mark.parametrize(
    ("settings", "tensors", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, pair(), "peft_type is 'PREFIX_TUNING'; LORA is supported"),
        (
            {"use_dora": True},
            pair(),
            r"_config.json has use_dora True \(it takes null\), which is not supported",
        ),
        ({"bias": "all"}, pair(), r"has bias 'all' \(it takes 'none' or null\), which is not supported"),
        ({"modules_to_save": ["lm_head"]}, pair(), r"has modules_to_save \['lm_head'\]"),
        (
            {"target_parameters": ["q_proj.weight"]},
            pair(),
            "target_parameters has 'q_proj.weight', and 'model.layers.0.self_attn.q_proj' is no router",
        ),
        (
            {"target_parameters": ["norm.scale"]},
            pair(),
            "target_parameters has 'norm.scale'; gate_up_proj and",
        ),
        ({"target_parameters": "down_proj"}, pair(), "target_parameters: Expected `array`, got `str`"),
        (
            {"target_parameters": ["experts.down_proj"], "r": 3},
            stacked("", 4),
            r"2 weights there, and .* rank 3 for each",
        ),
        ({"init_lora_weights": "pissa"}, pair(), "'pissa', which changes the base model's weights"),
        ({"r": None}, pair(), "no valid r, lora_alpha"),
        ({"alpha_pattern": {"(a+)+$": 2}}, pair(), "regular expressions are not supported"),
        ({}, pair(rank=3), "has rank 3, and adapter_config.json says 2"),
        ({"r": 5}, pair(rank=5), "has rank 5; max_lora_rank of the engine is 4"),
        ({}, {}, "has no tensors"),
        ({}, {KEY.format("q", "A"): torch.ones(2, 6)}, "has lora_A alone"),
        ({}, pair() | {KEY.format("q", "B"): torch.ones(8, 3)}, "whose ranks differ"),
        ({}, pair() | {KEY.format("q", "A"): torch.full((2, 6), torch.nan)}, "not finite"),
        ({}, pair() | {KEY.format("q", "A"): torch.ones(2, 6, dtype=torch.int8)}, "floating-point"),
        ({}, pair() | {"base_model.model.lm_head.weight": torch.ones(2)}, "replaces the weight of 'lm_head'"),
        ({}, pair() | {"other": torch.ones(2)}, "'other' is no part of a LoRA adapter"),
    ],
    ids=str,
)
def test_an_adapter_that_cannot_be_used_is_refused(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(AdapterError, match=words):
        read(tmp_path, settings, tensors)


def test_missing_and_large_files_are_refused(tmp_path: Path) -> None:
    large = {key: tensor.repeat(1, 50) for key, tensor in pair().items()}
    words = r"bytes; an adapter of rank 4.* has at most 1000"
    check_missing_and_large_files(tmp_path, partial(read_folder, max_bytes=1000), CONTENT, large, words)


@pytest.mark.parametrize("dtype", UNREAD_DTYPES, ids=str)
def test_weights_of_a_type_that_the_reader_lacks_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    check_unread_dtype(tmp_path, read_folder, CONTENT, pair(), dtype)


@given(DAMAGE)
def test_damaged_weights_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, damage: tuple[bytes, int, int]
) -> None:
    """Any bytes in place of some of the file give an adapter with finite values or an AdapterError."""
    folder = write(tmp_path_factory.mktemp("damaged"), CONTENT, pair())
    adapter = read_damaged(folder, read_folder, damage)
    assert adapter is None or all(
        part.isfinite().all() for update in adapter.pairs.values() for part in update
    )


@given(
    VALUES,
    st.sampled_from(["r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "peft_type"]),
)
def test_any_setting_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str
) -> None:
    folder = tmp_path_factory.mktemp("settings")
    with contextlib.suppress(AdapterError):
        read(folder, {name: value}, pair())
