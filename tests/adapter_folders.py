"""Folders of adapters, and what a reader of them does with files that are missing, large, damaged or wrong."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from engine_server.modeling.adapters.peft_folder import CONFIG, WEIGHTS, AdapterError

# Any value of a setting.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)
# Bytes, and the start and the end of those that they replace.
DAMAGE = st.tuples(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 400))

Read = Callable[[Path], Any]


def write(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    (folder / CONFIG).write_text(json.dumps(settings))
    save_file(tensors, folder / WEIGHTS)
    return folder


def check_missing_and_large_files(
    folder: Path, read: Read, settings: dict[str, Any], large: dict[str, Tensor], words: str
) -> None:
    """Check the errors about an empty folder, one without safetensors, and one with weights that are too large."""
    with pytest.raises(AdapterError, match=r"adapter_config.json can't be read"):
        read(folder)
    (folder / CONFIG).write_text(json.dumps(settings))
    (folder / "adapter_model.bin").write_bytes(b"a pickle")
    with pytest.raises(AdapterError, match=r"has no adapter_model.safetensors"):
        read(folder)
    with pytest.raises(AdapterError, match=words):
        read(write(folder, settings, large))


# Types that safetensors saves from torch and doesn't load into it.
UNREAD_DTYPES = (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)


def check_unread_dtype(
    folder: Path, read: Read, settings: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """Check the error about tensors of a type that safetensors' reader lacks."""
    codes = {key: torch.zeros_like(tensor, dtype=torch.uint8).view(dtype) for key, tensor in tensors.items()}
    with pytest.raises(
        AdapterError, match=r"has tensors of the type 'F\w+'; floating-point numbers of 16 to 64"
    ):
        read(write(folder, settings, codes))


def read_damaged(folder: Path, read: Read, damage: tuple[bytes, int, int]) -> Any | None:
    """Damage the weights; return what is read of them, or None for an AdapterError."""
    garbage, start, end = damage
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:start] + garbage + whole[end:])
    with contextlib.suppress(AdapterError):
        return read(folder)
    return None


def check_digest(
    folder: Path, read: Read, settings: dict[str, Any], contents: list[dict[str, Tensor]]
) -> None:
    """Check that the digest of an adapter is that of its content. contents: of two adapters."""
    one, other = contents
    first = read(write(folder, settings, one)).digest
    assert read(write(folder, settings, one)).digest == first
    assert read(write(folder, settings | {"revision": "a"}, one)).digest != first
    assert read(write(folder, settings, other)).digest != first
