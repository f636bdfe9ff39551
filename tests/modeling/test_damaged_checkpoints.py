"""Damaged safetensors files and indices, and quantised checkpoints whose config and tensors disagree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import TINY
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from engine_server import EngineArgs
from engine_server.model_sources import ModelSourceError, folder
from engine_server.model_sources.folder import INDEX, weight_bytes
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.checkpoints.stored import stored_tensors
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.usefixtures("shared_trials")

WEIGHTS = "model.safetensors"
MODULE = "model.layers.0.mlp.down_proj"
OUTPUTS, INPUTS, GROUP = 16, 32, 16
fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def entry(dtype: str = "F32", shape: Any = (2,), start: int = 0, end: int = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write(path: Path, header: Any, data: bytes, length: int | None = None) -> None:
    """Write a safetensors file; length: that of the header according to the file."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(content) if length is None else length).to_bytes(8, "little") + content + data)


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ({"a": entry()}, bytes(7), None),
        ({"a": entry()}, bytes(9), None),
        ({"a": entry(shape=(3,))}, bytes(8), None),
        ({"a": entry(shape=(-2,))}, bytes(8), None),
        ({"a": entry(shape=(1 << 62, 1 << 62))}, bytes(8), None),
        ({"a": entry(dtype="F31")}, bytes(8), None),
        ({"a": entry(start=8, end=0)}, bytes(8), None),
        ({"a": entry(end=1 << 60)}, bytes(8), None),
        ({"a": entry(), "b": entry()}, bytes(8), None),
        ({"a": entry(), "b": entry(start=4, end=12)}, bytes(12), None),
        ({"a": entry()}, bytes(8), 1 << 60),
        ({"a": entry()}, bytes(8), 5),
        (b"{", bytes(8), None),
        (b"\xff", bytes(8), None),
        (b"[]", b"", None),
        (b"[" * 100_000, b"", None),
    ],
)
def test_file_whose_header_does_not_fit_its_data_is_refused_by_name(
    tmp_path: Path, header: Any, data: bytes, length: int | None
) -> None:
    write(tmp_path / WEIGHTS, header, data, length)
    for read in (stored_tensors, lambda folder: weight_bytes(folder, None)):
        with pytest.raises(ValueError, match=r"model\.safetensors is no readable safetensors file"):
            read(tmp_path)


@fuzzed
@given(st.data())
def test_damaged_file_is_refused_or_read_within_its_bounds(tmp_path: Path, data: st.DataObject) -> None:
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.uint8)}, tmp_path / "whole")
    content = bytearray((tmp_path / "whole").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    (tmp_path / WEIGHTS).write_bytes(content[:end])
    try:
        tensors = stored_tensors(tmp_path)
        size = weight_bytes(tmp_path, None)
    except ValueError as error:
        assert "model.safetensors is no readable safetensors file" in str(error)
    else:
        assert size == sum(tensor.read().nbytes for tensor in tensors.values()) < end


@pytest.mark.parametrize(
    "index",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}", b'{"weight_map": []}', b'{"weight_map": {}}',
        b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": ""}}', b'{"weight_map": {"a": "a\\u0000b"}}',
        b'{"weight_map": {"a": "../model.safetensors"}}', b'{"weight_map": {"a": "/etc/passwd"}}',
    ],
)  # fmt: skip
def test_index_without_names_of_files_in_its_folder_is_refused_by_name(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path / WEIGHTS, {"a": entry()}, bytes(8))
    (tmp_path / INDEX).write_bytes(index)
    with pytest.raises(ModelSourceError, match=rf"cannot be read: {INDEX}"):
        folder.check(tmp_path, "there")
    with pytest.raises(ValueError, match=INDEX):
        stored_tensors(tmp_path)


@pytest.mark.more
@fuzzed
@given(anything)
def test_index_of_any_json_is_refused_or_names_files_in_its_folder(tmp_path: Path, places: Any) -> None:
    write(tmp_path / WEIGHTS, {"a": entry()}, bytes(8))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ModelSourceError, match=rf"{INDEX}|missing in"):
        folder.check(tmp_path, "there")


@pytest.mark.transformers
def test_file_without_a_weight_is_refused_by_its_name(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors[f"{MODULE}.weight"]
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    config = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True).create_engine_config()
    with pytest.raises(ValueError, match=rf"its files have no weights for {MODULE}\.weight"):
        load_model(config.model_config, config.load_config, CpuPlatform(), Communicator())


def compressed(form: str, bits: int, **weights: Any) -> dict[str, Any]:
    group = {"weights": {"num_bits": bits, "group_size": GROUP, "symmetric": False, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def gptq() -> dict[str, Tensor]:
    return {
        "qweight": words(INPUTS // 8, OUTPUTS), "qzeros": words(INPUTS // GROUP, OUTPUTS // 8),
        "scales": torch.rand(INPUTS // GROUP, OUTPUTS).half(), "g_idx": (torch.arange(INPUTS) // GROUP).int(),
    }  # fmt: skip


def awq() -> dict[str, Tensor]:
    return {
        "qweight": words(INPUTS, OUTPUTS // 8), "qzeros": words(INPUTS // GROUP, OUTPUTS // 8),
        "scales": torch.rand(INPUTS // GROUP, OUTPUTS).half(),
    }  # fmt: skip


def packed() -> dict[str, Tensor]:
    return {
        "weight_packed": words(OUTPUTS, INPUTS // 8), "weight_scale": torch.rand(OUTPUTS, INPUTS // GROUP),
        "weight_zero_point": words(OUTPUTS // 8, INPUTS // GROUP), "weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }  # fmt: skip


def float8() -> dict[str, Tensor]:
    codes = torch.randn(OUTPUTS, INPUTS).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": torch.rand(OUTPUTS // 8, INPUTS // 8)}


def mxfp4() -> dict[str, Tensor]:
    codes = torch.randint(0, 256, (2, OUTPUTS, INPUTS // 32, 16), dtype=torch.uint8)
    return {"weight_blocks": codes, "weight_scales": codes[..., 0] // 2}


def own() -> dict[str, Tensor]:
    codes = torch.randint(0, 256, (OUTPUTS, INPUTS // 2), dtype=torch.uint8)
    return {
        "weight_int4": codes, "weight_scales": torch.rand(OUTPUTS, INPUTS // GROUP),
        "weight_minima": torch.rand(OUTPUTS, INPUTS // GROUP),
    }  # fmt: skip


def nvfp4() -> dict[str, Tensor]:
    return {
        "weight_packed": torch.randint(0, 256, (OUTPUTS, INPUTS // 2), dtype=torch.uint8),
        "weight_scale": torch.rand(OUTPUTS, INPUTS // 16).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.rand(1) + 1,
    }  # fmt: skip


def modelopt() -> dict[str, Tensor]:
    names = {"weight_packed": "weight", "weight_global_scale": "weight_scale_2"}
    return {names.get(name, name): tensor for name, tensor in nvfp4().items()}


FORMATS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP}, awq),
    "pack-quantized": (compressed("pack-quantized", 4), packed),
    "nvfp4": (compressed("nvfp4-pack-quantized", 4, type="float", symmetric=True), nvfp4),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, modelopt),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [8, 8]}, float8),
    "mxfp4": ({"quant_method": "mxfp4"}, mxfp4),
    "integers": ({"quant_method": "integers", "version": 1}, own),
}
by_format = pytest.mark.parametrize("name", FORMATS)


def read(folder: Path, settings: Any, tensors: dict[str, Tensor]) -> Tensor:
    """Return the dequantised weight of a checkpoint with one module."""
    save_file({f"{MODULE}.{name}": own.contiguous() for name, own in tensors.items()}, folder / WEIGHTS)
    checkpoint = QuantizedCheckpoint(folder, settings, "config.json")
    (weight,) = checkpoint.state(torch.float32, dense=True).values()
    found: Tensor = weight[...]
    assert found.shape == weight.shape
    return found


@by_format
@pytest.mark.parametrize("change", ["drop", "narrow", "widen", "flatten", "dtype", "nan"])
def test_any_changed_tensor_is_refused_by_name(tmp_path: Path, name: str, change: str) -> None:
    settings, make = FORMATS[name]
    assert read(tmp_path, settings, make()).isfinite().all()
    for part, tensor in make().items():
        if part in ("g_idx", "weight_minima") and change == "drop":  # these are optional
            continue
        changed = {
            "drop": None,
            "narrow": tensor[: len(tensor) // 2],
            "widen": torch.cat([tensor, tensor]),
            "flatten": tensor.flatten() if tensor.ndim > 1 else tensor[None],
            "dtype": tensor.double() if tensor.dtype.itemsize > 1 else tensor.view(torch.int8),
            "nan": None if tensor.dtype not in (torch.float16, torch.float32) else tensor * torch.nan,
        }[change]
        if change == "nan" and changed is None:
            continue
        tensors = {own: held for own, held in make().items() if own != part}
        with pytest.raises(ValueError, match=rf"{MODULE}|weights are quantized with .*, and none is"):
            read(tmp_path, settings, tensors if changed is None else tensors | {part: changed})


@pytest.mark.parametrize("name", ["gptq", "awq", "pack-quantized"])
@pytest.mark.parametrize("group", [8, 32, -1, 0, "16"])
def test_group_size_that_is_not_that_of_the_scales_is_refused(tmp_path: Path, name: str, group: Any) -> None:
    settings, make = FORMATS[name]
    settings = (
        compressed("pack-quantized", 4, group_size=group)
        if name == "pack-quantized"
        else settings | {"group_size": group}
    )
    with pytest.raises(
        ValueError, match=rf"scale.* has 2 groups of 32 inputs; the config's group size is {group}"
    ):
        read(tmp_path, settings, make())


@fuzzed
@by_format
@given(st.data())
def test_config_of_any_json_is_refused_or_fits(tmp_path: Path, name: str, data: st.DataObject) -> None:
    settings, make = FORMATS[name]
    settings = json.loads(json.dumps(settings))
    place: Any = settings
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(anything)
    try:
        found = read(tmp_path, settings, make())
    except ValueError:
        return
    assert found.isfinite().all()
