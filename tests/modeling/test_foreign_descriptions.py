"""Folders of ModelOpt and of AutoGPTQ, whose own files describe the weights, alone or beside config.json."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from engine_server import EngineArgs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.codecs import E2M1, E4M3, FLOAT, INT4
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("shared_trials")]

HIDDEN, GROUP = 64, 16
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MODELOPT, AUTOGPTQ = "hf_quant_config.json", "quantize_config.json"
# The tensors of a module, and the weight that they stand for.
Packed = tuple[dict[str, Tensor], Tensor]


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = as_loaded  # type: ignore[assignment]


def fp8(weight: Tensor) -> Packed:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.ones(())}, codes.float() * scale


def nvfp4(weight: Tensor) -> Packed:
    """The factor multiplies: it is that of the largest magnitude."""
    factor = weight.abs().max() / (6 * 448)
    groups = weight.view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1) / factor / 6).to(torch.float8_e4m3fn)
    scaled = groups / (scales.float() * factor).unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - NUMBERS).abs().argmin(-1)
    numbers = NUMBERS[codes] * scaled.sign()
    signed = (codes + 8 * (scaled < 0)).to(torch.uint8).view_as(weight)
    dense = (numbers * scales.float().unsqueeze(-1) * factor).view_as(weight)
    packed = signed[:, ::2] | signed[:, 1::2] << 4
    tensors = {
        "weight": packed,
        "weight_scale": scales,
        "weight_scale_2": factor,
        "input_scale": torch.ones(()),
    }
    return tensors, dense


def gptq(weight: Tensor) -> Packed:
    """Codes of 4 bits with zero points that are stored less 1, as files without checkpoint_format have them."""
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(1, 15)
    codes = (groups / scales + zeros).round().clamp(0, 15)
    dense = (scales * (codes - zeros)).view_as(weight)

    def words(values: Tensor) -> Tensor:
        shifted = values.long().unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)
        return shifted.sum(-1).to(torch.uint32).view(torch.int32)

    return {
        "qweight": words(codes.view_as(weight)).t(), "qzeros": words(zeros.squeeze(-1).t() - 1),
        "scales": scales.squeeze(-1).t().half(), "g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
    }, dense  # fmt: skip


def write(
    folder: Path, pack: Callable[[Tensor], Packed], file: str = "model.safetensors", **files: Any
) -> dict[str, Tensor]:
    """Write a model; return the weights of its quantised modules. files: settings by the name of their file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1,
        vocab_size=96, max_position_embeddings=64, dtype="float32",
    )  # fmt: skip
    tensors, expected = {}, {}
    for name, weight in LlamaForCausalLM(config).state_dict().items():
        module = name.removesuffix(".weight")
        if module.endswith("proj"):
            parts, expected[module] = pack(weight)
            tensors.update({f"{module}.{own}": part.contiguous() for own, part in parts.items()})
        else:
            tensors[name] = weight.clone()
    save_file(tensors, folder / file, {"format": "pt"})
    settings = config.to_dict() | files.pop("config", {})
    (folder / "config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return expected


def loaded(folder: Path) -> Any:
    settings = EngineArgs(model=str(folder), dtype="float32", skip_tokenizer_init=True).create_engine_config()
    return load_model(settings.model_config, settings.load_config, KeepsWeights(), Communicator())


def check(folder: Path, expected: dict[str, Tensor], form: Callable[[int], Form]) -> None:
    """Check the forms of a model's weights, given those for numbers of inputs, and what they stand for."""
    layer = loaded(folder).model.layers[0]
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weight, found = expected[f"model.layers.0.{name}"], layer.get_submodule(name).format
        assert isinstance(found, GroupedFormat) and found.form == form(weight.shape[1])
        torch.testing.assert_close(found.dense(), weight, rtol=1e-6, atol=1e-9)
    fused = torch.cat([expected[f"model.layers.0.self_attn.{name}_proj"] for name in "qkv"])
    torch.testing.assert_close(layer.self_attn.q_proj.fused.format.dense(), fused, rtol=1e-6, atol=1e-9)


def by_modelopt(algorithm: Any, **settings: Any) -> dict[str, Any]:
    """Return the content of ModelOpt's own file."""
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    return {"producer": {"name": "modelopt", "version": "0.33"}, "quantization": own | settings}


def in_config(algorithm: Any, **settings: Any) -> dict[str, Any]:
    """Return the changes of config.json that ModelOpt makes."""
    return {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": []} | settings
    }


FORMS: dict[str, tuple[Callable[[Tensor], Packed], Callable[[int], Form]]] = {
    "FP8": (fp8, lambda inputs: Form(E4M3, FLOAT, inputs)),
    "NVFP4": (nvfp4, lambda inputs: Form(E2M1, E4M3, GROUP)),
}


@pytest.mark.parametrize("place", ["config", "file", "both"])
@pytest.mark.parametrize("algorithm", FORMS)
def test_folder_of_modelopt_is_read_by_either_description(tmp_path: Path, algorithm: str, place: str) -> None:
    pack, form = FORMS[algorithm]
    files: dict[str, Any] = {}
    if place != "file":
        files["config"] = in_config(algorithm)
    if place != "config":
        files[MODELOPT] = by_modelopt(algorithm, group_size=GROUP if algorithm == "NVFP4" else None)
    check(tmp_path, write(tmp_path, pack, **files), form)


def test_scales_of_the_cache_are_left_out(tmp_path: Path) -> None:
    expected = write(tmp_path, nvfp4, **{MODELOPT: by_modelopt("NVFP4")})
    tensors = load_file(tmp_path / "model.safetensors")
    for name in "kv":
        tensors[f"model.layers.0.self_attn.{name}_proj.{name}_scale"] = torch.ones(())
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    check(tmp_path, expected, FORMS["NVFP4"][1])


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("MIXED_PRECISION", {}, "quant_algo 'MIXED_PRECISION' is not supported; known are FP8, NVFP4"),
        ("W4A8_AWQ", {}, "quant_algo 'W4A8_AWQ' is not supported"),
        (["FP8"], {}, "is not one of modelopt"),
        ("NVFP4", {"group_size": 32}, "NVFP4 with group_size 32 is not supported; known is 16"),
        ("NVFP4", {"pre_quant_scale": True}, "has pre_quant_scale True (it takes null)"),
        ("FP8", {"moe_quant_algo": "NVFP4"}, "has moe_quant_algo 'NVFP4'"),
        ("FP8", {}, "is U8; weights in FP8 are F8_E4M3"),
    ],
    ids=str,
)
def test_other_algorithms_of_modelopt_are_refused_by_name(
    tmp_path: Path, algorithm: Any, settings: dict[str, Any], message: str
) -> None:
    write(tmp_path, nvfp4, **{MODELOPT: by_modelopt(algorithm, **settings)})
    with pytest.raises(ValueError, match=re.escape(message)):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [("quant_algo", ("NVFP4", "FP8")), ("group_size", (16, 32))],
    ids=["algorithm", "group"],
)
def test_files_of_modelopt_that_disagree_are_refused_with_both_values(
    tmp_path: Path, name: str, values: tuple[Any, Any]
) -> None:
    config, file = ({"quant_algo": "NVFP4", "group_size": 16} | {name: value} for value in values)
    settings = {"quantization_config": {"quant_method": "modelopt"} | config}
    write(tmp_path, nvfp4, config=settings, **{MODELOPT: {"quantization": file}})
    message = f"config.json has {name} {values[0]!r}, and {tmp_path / MODELOPT} has {values[1]!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "settings", [{}, {"checkpoint_format": "gptq", "quant_method": "gptq"}], ids=["old", "new"]
)
def test_old_folder_of_autogptq_is_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    own = {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": False, "is_marlin_format": False}
    expected = write(tmp_path, gptq, "gptq_model-4bit-16g.safetensors", **{AUTOGPTQ: own | settings})
    check(tmp_path, expected, lambda inputs: Form(INT4, FLOAT, GROUP))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint_format": "marlin"}, "the GPTQ form marlin is not supported"),
        ({"is_marlin_format": True}, "has is_marlin_format True"),
        ({"quant_method": "exl2"}, "quantized with exl2, which is not supported"),
        ({"bits": 5}, "GPTQ with 5 bits is not supported"),
    ],
    ids=str,
)
def test_other_forms_in_old_folders_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    write(tmp_path, gptq, **{AUTOGPTQ: {"bits": 4, "group_size": GROUP} | settings})
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path)


def test_folder_with_two_sets_of_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path, gptq, "gptq_model-4bit-16g.safetensors", **{AUTOGPTQ: {"bits": 4, "group_size": GROUP}})
    save_file({"model.norm.weight": torch.ones(HIDDEN)}, tmp_path / "model.safetensors")
    message = "'model.norm.weight' is in gptq_model-4bit-16g.safetensors and in model.safetensors"
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path)


def test_description_beside_dense_weights_is_logged_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, lambda weight: ({"weight": weight.clone()}, weight), **{AUTOGPTQ: {"bits": 4}})
    with caplog.at_level(logging.INFO):
        model = loaded(tmp_path)
    assert isinstance(model.model.layers[0].mlp.down_proj.format, DenseFormat)
    assert any("weights are read as they are: " in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("file", "content"),
    [(MODELOPT, "[]"), (MODELOPT, "{"), (MODELOPT, '{"quantization": 5}'), (AUTOGPTQ, "[]"), (AUTOGPTQ, "{")],
)
def test_damaged_description_is_refused_by_its_name(tmp_path: Path, file: str, content: str) -> None:
    write(tmp_path, nvfp4)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=file):
        loaded(tmp_path)
