"""The reader of PEFT's prompt adapters: what it reads, and what it refuses."""

import contextlib
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

from engine_server.modeling.adapters.peft_folder import AdapterError
from engine_server.modeling.adapters.prompt_folder import PromptAdapter, read_prompt_adapter

CONTENT = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3}


def embeddings(*shape: int) -> dict[str, Tensor]:
    return {"prompt_embeddings": torch.ones(*shape or (3, 8))}


def read_folder(folder: Path) -> PromptAdapter:
    return read_prompt_adapter(folder, 3, 8)


def read(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> PromptAdapter:
    return read_folder(write(folder, CONTENT | settings, tensors))


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_embeddings_are_read(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 8).to(dtype)
    adapter = read(tmp_path, {"peft_type": kind}, {"prompt_embeddings": tensor})
    assert torch.equal(adapter.embeddings, tensor)


def test_digest_depends_on_both_files(tmp_path: Path) -> None:
    check_digest(tmp_path, read_folder, CONTENT, [embeddings(), {"prompt_embeddings": torch.zeros(3, 8)}])


@pytest.mark.parametrize(
    ("settings", "tensors", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, embeddings(), "peft_type is 'PREFIX_TUNING'; PROMPT_TUNING and P_TUNING"),
        ({"peft_type": "MULTITASK_PROMPT_TUNING"}, embeddings(), "is 'MULTITASK_PROMPT_TUNING'; PROMPT_TUNING"),
        ({"peft_type": "LORA"}, embeddings(), "is 'LORA'; .* LORA as LoRA adapters"),
        ({"peft_type": ["P_TUNING"]}, embeddings(), r"peft_type is \['P_TUNING'\]"),
        ({"num_virtual_tokens": 4}, embeddings(4, 8), "has 4 virtual tokens, and the request says 3"),
        ({"num_virtual_tokens": "3"}, embeddings(), "num_virtual_tokens is '3'; it takes an integer from 1 on"),
        ({"num_virtual_tokens": True}, embeddings(), "num_virtual_tokens is True"),
        ({"modules_to_save": ["score"]}, embeddings(), r"has modules_to_save \['score'\] \(it takes null\)"),
        ({}, {}, "the adapter has no prompt_embeddings"),
        ({}, embeddings(3, 9), r"the shape \[3, 9\], and 3 tokens of the model \[3, 8\]: it belongs to another"),
        ({}, embeddings(6, 8), r"the shape \[6, 8\], and 3 tokens"),
        ({}, embeddings(24), r"the shape \[24\]"),
        ({}, embeddings() | {"base_model.score.weight": torch.ones(2)}, "'base_model.score.weight' is no part"),
        ({}, {"prompt_embeddings": torch.full((3, 8), torch.nan)}, "not finite"),
        ({}, {"prompt_embeddings": torch.full((3, 8), 1e300, dtype=torch.float64)}, "not finite"),
        ({}, {"prompt_embeddings": torch.ones(3, 8, dtype=torch.int8)}, "torch.int8; floating-point"),
        ({}, {"prompt_embeddings": torch.ones(3, 8).to(torch.float8_e4m3fn)}, "floating-point"),
    ],
    ids=str,
)  # fmt: skip
def test_an_adapter_that_cannot_be_used_is_refused(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(AdapterError, match=words):
        read(tmp_path, settings, tensors)


def test_missing_and_large_files_are_refused(tmp_path: Path) -> None:
    words = r"bytes; 3 virtual tokens take at most 10\d+ for this model"
    check_missing_and_large_files(tmp_path, read_folder, CONTENT, embeddings(3, 1 << 18), words)


@pytest.mark.parametrize("dtype", UNREAD_DTYPES, ids=str)
def test_weights_of_a_type_that_the_reader_lacks_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    check_unread_dtype(tmp_path, read_folder, CONTENT, embeddings(), dtype)


@given(DAMAGE)
def test_damaged_weights_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, damage: tuple[bytes, int, int]
) -> None:
    """Any bytes in place of some of the file give embeddings of the model's shape or an AdapterError."""
    folder = write(tmp_path_factory.mktemp("damaged"), CONTENT, embeddings())
    adapter = read_damaged(folder, read_folder, damage)
    if adapter is not None:
        assert adapter.embeddings.shape == (3, 8) and adapter.embeddings.float().isfinite().all()


@given(VALUES, st.sampled_from(["peft_type", "num_virtual_tokens", "modules_to_save", "token_dim"]))
def test_any_setting_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str
) -> None:
    folder = tmp_path_factory.mktemp("settings")
    with contextlib.suppress(AdapterError):
        read(folder, {name: value}, embeddings())
