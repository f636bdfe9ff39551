"""Experts in MXFP4, as gpt-oss stores them: their weights, products and memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from native_kernels import needs_kernels
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine_server import EngineArgs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.codecs import E2M1, E8M0
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.native import native
from engine_server.modeling.formats.native_minifloat import NativeMinifloatFormat
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.loader.room import needed_bytes
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform

pytestmark = pytest.mark.transformers

HIDDEN, INNER, EXPERTS, BLOCK = 64, 32, 3, 32
SIZES = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
EXPERTS_PATH = "model.layers.0.mlp.experts"
SETTINGS = {"quant_method": "mxfp4"}
WEIGHTS = EXPERTS * sum(outputs * inputs for outputs, inputs in SIZES.values())


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = staticmethod(as_loaded)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer with random codes, whose scales differ by factors of a thousand."""
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_local_experts=EXPERTS, num_experts_per_tok=2, vocab_size=96, max_position_embeddings=64,
        layer_types=["full_attention"], dtype="bfloat16",
    )  # fmt: skip
    tensors = GptOssForCausalLM(config).state_dict()
    for name, (outputs, inputs) in SIZES.items():
        path = f"{EXPERTS_PATH}.{name}"
        del tensors[path]
        tensors[f"{path}_blocks"] = torch.randint(
            0, 256, (EXPERTS, outputs, inputs // BLOCK, 16), dtype=torch.uint8
        )
        tensors[f"{path}_scales"] = torch.randint(
            116, 127, (EXPERTS, outputs, inputs // BLOCK), dtype=torch.uint8
        )
    place = tmp_path_factory.mktemp("mxfp4")
    (place / "config.json").write_text(json.dumps(config.to_dict() | {"quantization_config": SETTINGS}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / "model.safetensors")
    return place


def experts(folder: Path, platform: CpuPlatform, **options: Any) -> Any:
    """Return the experts of the first layer, loaded for float32."""
    settings = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, **options
    ).create_engine_config()
    model = load_model(settings.model_config, settings.load_config, platform, Communicator())
    return model.model.layers[0].mlp.experts


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights as transformers dequantises them, [experts, in, out]."""
    stored = load_file(folder / "model.safetensors")
    return {
        name: convert_moe_packed_tensors(
            stored[f"{EXPERTS_PATH}.{name}_blocks"], stored[f"{EXPERTS_PATH}.{name}_scales"]
        ).float()
        for name in SIZES
    }


def test_experts_are_those_that_transformers_dequantises(folder: Path) -> None:
    kept = experts(folder, KeepsWeights()).products
    dequantised = experts(folder, KeepsWeights(), load_format="dequantized").products
    for name, expected in weights(folder).items():
        for found, dense, own in zip(kept[name], dequantised[name], expected, strict=True):
            assert isinstance(found, GroupedFormat) and isinstance(dense, DenseFormat)
            assert torch.equal(found.dense(), own.t())
            assert torch.equal(dense.weight, own.t())


@needs_kernels
def test_kernels_compute_what_dequantised_experts_do(folder: Path) -> None:
    kept = experts(folder, NativePlatform())
    expected = experts(folder, CpuPlatform(), load_format="dequantized")
    assert all(isinstance(format, NativeMinifloatFormat) for name in SIZES for format in kept.products[name])
    values = torch.randn(5, HIDDEN)
    scores, index = torch.rand(5, EXPERTS).topk(2)
    torch.testing.assert_close(kept(values, index, scores), expected(values, index, scores))


@needs_kernels
def test_experts_take_a_nibble_for_each_weight_and_a_byte_for_each_block(folder: Path) -> None:
    kept = experts(folder, NativePlatform())
    biases = EXPERTS * sum(outputs for outputs, _ in SIZES.values())
    assert sum(tensor.nbytes for tensor in kept.tables) == WEIGHTS // 2 + WEIGHTS // BLOCK + 4 * biases


@needs_kernels
def test_estimate_of_memory_knows_which_layouts_keep_experts(folder: Path) -> None:
    checkpoint = QuantizedCheckpoint(folder, SETTINGS, "config.json")
    sizes = [
        needed_bytes(folder, checkpoint.state(torch.float32, dense), torch.float32, layout, routed)
        for layout, dense, routed in (
            (native, False, True), (native, True, True), (native, False, False), (pack, False, True),
        )
    ]  # fmt: skip
    saved = 4 * WEIGHTS - WEIGHTS // 2 - WEIGHTS // BLOCK
    assert [size - sizes[0] for size in sizes[1:]] == [saved] * 3


def test_scales_of_nan_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{EXPERTS_PATH}.down_proj_scales"][0, 0, 0] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match=r"down_proj_scales contains NaN"):
        experts(tmp_path, KeepsWeights())


@pytest.mark.parametrize("pieces", [2, 4])
def test_parts_of_ranks_add_up_to_the_whole(pieces: int) -> None:
    codes = torch.randint(0, 256, (12, HIDDEN // 2), dtype=torch.uint8)
    exponents = torch.randint(120, 130, (12, HIDDEN // BLOCK), dtype=torch.uint8)
    whole = GroupedFormat(Form(E2M1, E8M0, BLOCK), codes, exponents, torch.float32)
    for dim in (0, 1):
        parts = [whole.shard(Cut(dim, pieces, piece)) for piece in range(pieces)]
        assert torch.equal(torch.cat([part.dense() for part in parts], dim), whole.dense())
    first, second = (whole.shard(Cut(0, 2, piece)) for piece in range(2))
    assert first.can_join(second)
    assert torch.equal(GroupedFormat.concat([first, second]).dense(), whole.dense())
    assert torch.equal(whole.gather(torch.tensor([[3], [0]])), whole.dense()[[3, 0], None])
