"""The reader of PEFT's prompt adapters: what it reads, and what it refuses."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from engine_server.modeling.adapters.peft_folder import CONFIG, WEIGHTS, AdapterError
from engine_server.modeling.adapters.prompt_folder import PromptAdapter, read_prompt_adapter

CONTENT = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3}


def embeddings(*shape: int) -> dict[str, Tensor]:
    return {"prompt_embeddings": torch.ones(*shape or (3, 8))}


def read(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor], count: int = 3) -> PromptAdapter:
    (folder / CONFIG).write_text(json.dumps(CONTENT | settings))
    save_file(tensors, folder / WEIGHTS)
    return read_prompt_adapter(folder, count, 8)


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_embeddings_are_read(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 8).to(dtype)
    adapter = read(tmp_path, {"peft_type": kind}, {"prompt_embeddings": tensor})
    assert torch.equal(adapter.embeddings, tensor)


def test_digest_depends_on_both_files(tmp_path: Path) -> None:
    first = read(tmp_path, {}, embeddings()).digest
    assert read(tmp_path, {}, embeddings()).digest == first
    assert read(tmp_path, {"revision": "a"}, embeddings()).digest != first
    assert read(tmp_path, {}, {"prompt_embeddings": torch.zeros(3, 8)}).digest != first


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
        ({"modules_to_save": ["score"]}, embeddings(), "modules_to_save is .*, which is not supported"),
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
    with pytest.raises(AdapterError, match=r"adapter_config.json can't be read"):
        read_prompt_adapter(tmp_path, 3, 8)
    (tmp_path / CONFIG).write_text(json.dumps(CONTENT))
    (tmp_path / "adapter_model.bin").write_bytes(b"a pickle")
    with pytest.raises(AdapterError, match=r"has no adapter_model.safetensors"):
        read_prompt_adapter(tmp_path, 3, 8)
    save_file({"prompt_embeddings": torch.ones(3, 1 << 18)}, tmp_path / WEIGHTS)
    with pytest.raises(AdapterError, match=r"bytes; 3 virtual tokens take at most 10\d+ for this model"):
        read_prompt_adapter(tmp_path, 3, 8)


@given(st.binary(max_size=200), st.integers(0, 250), st.integers(0, 250))
def test_damaged_weights_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, start: int, end: int
) -> None:
    """Any bytes in place of some of the file give embeddings of the model's shape or an AdapterError."""
    folder = tmp_path_factory.mktemp("damaged")
    read(folder, {}, embeddings())
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:start] + garbage + whole[end:])
    try:
        adapter = read_prompt_adapter(folder, 3, 8)
    except AdapterError:
        return
    assert adapter.embeddings.shape == (3, 8) and adapter.embeddings.float().isfinite().all()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    ),
    st.sampled_from(["peft_type", "num_virtual_tokens", "modules_to_save", "token_dim"]),
)
def test_any_setting_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str
) -> None:
    folder = tmp_path_factory.mktemp("settings")
    with contextlib.suppress(AdapterError):
        read(folder, {name: value}, embeddings())
