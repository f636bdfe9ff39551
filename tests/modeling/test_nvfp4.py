"""NVFP4 as compressed-tensors stores it: its weights beside the library's own, and tensors that don't fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import NVFP4A16
from native_kernels import needs_kernels
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine_server import EngineArgs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.codecs import E2M1, E4M3
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.loader.room import held_bytes
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("shared_trials")]

HIDDEN, GROUP = 64, 16
# The largest magnitude of a weight is stored as the largest code times the largest scale.
LARGEST = 6.0 * 448.0
FORM = Form(E2M1, E4M3, GROUP)
SCHEME = QuantizationScheme(**NVFP4A16, targets=["Linear"])
SETTINGS = {
    "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP, "symmetric": True,
                "dynamic": False, "scale_dtype": "torch.float8_e4m3fn",
            },
        }
    },
}  # fmt: skip
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = as_loaded  # type: ignore[assignment]


def compressed(weight: Tensor) -> dict[str, Tensor]:
    """Return a weight as compressed-tensors compresses it."""
    factor = LARGEST / weight.abs().max().view(1)
    scales = weight.view(len(weight), -1, GROUP).abs().amax(-1) * factor / 6
    state = {
        "weight": weight,
        "weight_scale": scales.to(torch.float8_e4m3fn).float(),
        "weight_global_scale": factor,
    }
    found: dict[str, Tensor] = NVFP4PackedCompressor.compress(state, SCHEME)
    return found


def by_formula(stored: dict[str, Tensor]) -> Tensor:
    """Return the weight in float64: number * scale / factor."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    numbers = torch.cat([numbers, -numbers])
    packed = stored["weight_packed"].long()
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    scales = stored["weight_scale"].double().repeat_interleave(GROUP, 1)
    return numbers[codes] * scales / stored["weight_global_scale"].double()


def write(folder: Path, model: Any, **changed: Tensor) -> dict[str, dict[str, Tensor]]:
    """Write a checkpoint; return the tensors of the quantised modules. changed: of down_proj."""
    stored, modules = {}, {}
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        if not module.endswith("proj"):
            stored[name] = tensor.clone()
            continue
        modules[module] = compressed(tensor) | {"input_global_scale": torch.ones(1)}
        if module.endswith("down_proj"):
            modules[module] |= changed
        stored.update({f"{module}.{own}": part.contiguous() for own, part in modules[module].items()})
    (folder / "config.json").write_text(
        json.dumps(model.config.to_dict() | {"quantization_config": SETTINGS})
    )
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return modules


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, dtype="float32"))


def loaded(folder: Path, platform: CpuPlatform, **options: Any) -> Any:
    settings = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, **options
    ).create_engine_config()
    return load_model(settings.model_config, settings.load_config, platform, Communicator())


def test_weight_is_the_one_that_the_library_decompresses(tmp_path: Path) -> None:
    modules = write(tmp_path, llama())
    weights = QuantizedCheckpoint(tmp_path, SETTINGS, "config.json").state(torch.float32, dense=True)
    for module, stored in modules.items():
        found = weights[f"{module}.weight"][...]
        torch.testing.assert_close(found.double(), by_formula(stored), rtol=1e-6, atol=0)
        theirs = NVFP4PackedCompressor.decompress(stored, SCHEME)["weight"]
        torch.testing.assert_close(found, theirs.float(), rtol=1e-2, atol=0)  # theirs is rounded to bfloat16
        assert 1e-3 < found.abs().max() < 1  # not wrong by the square of the factor


def test_parts_of_a_fused_product_keep_their_own_factors(tmp_path: Path) -> None:
    modules = write(tmp_path, llama())
    layer = loaded(tmp_path, KeepsWeights()).model.layers[0]
    fused = layer.self_attn.q_proj.fused.format
    assert isinstance(fused, GroupedFormat) and fused.form == FORM
    names = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    expected = torch.cat([by_formula(modules[name]) for name in names])
    torch.testing.assert_close(fused.dense().double(), expected, rtol=1e-6, atol=0)
    assert fused.factors is not None and len(fused.factors.unique()) == 3


@needs_kernels
def test_model_computes_with_the_dequantised_weights(tmp_path: Path) -> None:
    write(tmp_path, llama())
    expected = loaded(tmp_path, CpuPlatform(), load_format="dequantized")
    states = torch.randn(3, HIDDEN)
    for platform in (KeepsWeights(), CpuPlatform(), NativePlatform()):
        found = loaded(tmp_path, platform)
        for own, theirs in zip(found.model.layers, expected.model.layers, strict=True):
            torch.testing.assert_close(own.mlp(states), theirs.mlp(states))


@needs_kernels
def test_experts_stored_one_by_one_stay_quantised(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=32, head_dim=16, num_experts=3, num_experts_per_tok=2, dtype="float32"
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "dense")
    stored = load_file(tmp_path / "dense" / "model.safetensors")

    class Stored:
        config = Qwen3MoeConfig.from_pretrained(tmp_path / "dense")

        def state_dict(self) -> dict[str, Tensor]:
            return stored

    modules = write(tmp_path, Stored())
    products = loaded(tmp_path, KeepsWeights()).model.layers[0].mlp.experts.products
    native = loaded(tmp_path, NativePlatform()).model.layers[0].mlp.experts.products
    for number in range(3):
        own = f"model.layers.0.mlp.experts.{number}"
        gate_up = torch.cat([by_formula(modules[f"{own}.{name}_proj"]) for name in ("gate", "up")])
        for name, weight in (
            ("gate_up_proj", gate_up),
            ("down_proj", by_formula(modules[f"{own}.down_proj"])),
        ):
            found = products[name][number]
            assert isinstance(found, GroupedFormat)
            torch.testing.assert_close(found.dense().double(), weight, rtol=1e-6, atol=0)
            product = native[name][number].apply(torch.eye(weight.shape[1]))
            torch.testing.assert_close(product.T, found.dense(), rtol=0, atol=0)


def test_announced_size_is_the_size_in_memory(tmp_path: Path) -> None:
    modules = write(tmp_path, llama())
    weights = QuantizedCheckpoint(tmp_path, SETTINGS, "config.json").state(torch.float32, dense=False)
    quantised = {name: weights[name] for name in [f"{module}.weight" for module in modules]}
    numbers = sum(2 * stored["weight_packed"].numel() for stored in modules.values())
    kept = held_bytes(quantised, torch.float32, as_loaded, True)
    assert kept == numbers // 2 + numbers // GROUP + 4 * len(modules)
    assert held_bytes(quantised, torch.float32, pack, True) == 4 * numbers


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"weight_global_scale": torch.full((1,), torch.inf)},
            "weight_global_scale contains NaN or infinite",
        ),
        (
            {"weight_global_scale": torch.full((1,), torch.nan)},
            "weight_global_scale contains NaN or infinite",
        ),
        ({"weight_global_scale": torch.zeros(1)}, "weight_global_scale is 0.0, by which nothing is divided"),
        ({"weight_global_scale": torch.ones(2)}, r"weight_global_scale is F32 \[2\]; expected is one float"),
        (
            {"weight_scale": torch.full((HIDDEN, 6), torch.nan).to(torch.float8_e4m3fn)},
            "weight_scale contains NaN or infinite values",
        ),
        ({"weight_scale": torch.ones(HIDDEN, 6)}, "weight_scale is F32; expected is F8_E4M3"),
        (
            {"weight_scale": torch.ones(HIDDEN, 3).to(torch.float8_e4m3fn)},
            r"weight_scale has the shape \[64, 3\]; expected is \[64, 6\]",
        ),
        (
            {"weight_packed": torch.zeros(HIDDEN, 20, dtype=torch.uint8)},
            "weight_packed has codes of 40 inputs; expected is a multiple of 16, which share a scale",
        ),
        (
            {"weight_zero_point": torch.zeros(HIDDEN, 6)},
            "no part of the model takes .*down_proj.weight_zero_point",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_tensor_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Tensor], message: str
) -> None:
    write(tmp_path, llama(), **changed)
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path, KeepsWeights())


def test_weight_without_its_factor_is_refused(tmp_path: Path) -> None:
    modules = write(tmp_path, llama())
    tensors = {f"a.{name}": part for name, part in next(iter(modules.values())).items()}
    del tensors["a.weight_global_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"a\.weight_packed has no weight_global_scale beside it"):
        QuantizedCheckpoint(tmp_path, SETTINGS, "config.json")
