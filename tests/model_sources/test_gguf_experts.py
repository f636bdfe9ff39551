"""The stacked experts of a GGUF file."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from native_kernels import needs_kernels
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine_server import EngineArgs
from engine_server.model_sources import resolve
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.native_integer import NativeIntegerFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform

pytestmark = pytest.mark.transformers

EXPERTS, INNER, HIDDEN, GROUP = 4, 64, 32, 32


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = staticmethod(as_loaded)


def loaded(file: Path, platform: CpuPlatform) -> Any:
    config = EngineArgs(model=str(file), dtype="float32").create_engine_config()
    return load_model(config.model_config, config.load_config, platform, Communicator())


def test_experts_stay_quantised_where_gate_and_up_have_one_form(
    cache: Path, experts_gguf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dense = AutoModelForCausalLM.from_pretrained(resolve(str(experts_gguf), load_format="dequantized"))
    with caplog.at_level(logging.INFO, "engine_server.model_sources"):
        model = loaded(experts_gguf, KeepsWeights())
    kept = "4 tensors of Q4_0, 1 tensors of Q4_1, 1 tensors of Q8_0"
    assert f"experts.gguf: kept quantised: {kept}" in caplog.messages
    assert "experts.gguf: dequantised to bfloat16: 1 tensors of Q4_0, 1 tensors of Q4_1" in caplog.messages
    forms = {(0, "gate_up_proj"): 4, (0, "down_proj"): 8, (1, "gate_up_proj"): 16, (1, "down_proj"): 4}
    for (layer, name), bits in forms.items():
        expected = getattr(dense.model.layers[layer].mlp.experts, name)
        for found, own in zip(model.model.layers[layer].mlp.experts.products[name], expected, strict=True):
            assert isinstance(found, DenseFormat) if bits == 16 else found.form.codes.bits == bits
            weight = found.dense() if isinstance(found, GroupedFormat) else found.weight
            torch.testing.assert_close(weight, own.float(), rtol=2**-8, atol=0)


@needs_kernels
def test_kernels_multiply_experts_in_the_memory_of_the_file(cache: Path, experts_gguf: Path) -> None:
    model = loaded(experts_gguf, NativePlatform())
    experts = model.model.layers[0].mlp.experts
    products = [format for formats in experts.products.values() for format in formats]
    assert all(isinstance(format, NativeIntegerFormat) for format in products)
    # Blocks of 32 weights: 16 bytes of Q4_0 or 32 of Q8_0, and a scale in float16.
    gate_up, down = 2 * EXPERTS * INNER * HIDDEN, EXPERTS * INNER * HIDDEN
    expected = gate_up // GROUP * (16 + 2) + down // GROUP * (32 + 2)
    assert sum(tensor.nbytes for tensor in experts.tables) == expected


def test_experts_are_stored_quantised(cache: Path, experts_gguf: Path) -> None:
    stored = load_file(resolve(str(experts_gguf)) / "model.safetensors")
    codes = stored["model.layers.0.mlp.experts.gate_up_proj_int4"]
    assert codes.shape == (EXPERTS, 2 * INNER, HIDDEN // 2)
    assert stored["model.layers.1.mlp.experts.gate_up_proj"].dtype == torch.bfloat16
    assert "model.layers.0.mlp.experts.gate_up_proj" not in stored
