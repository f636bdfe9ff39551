"""Quantised checkpoints: each format against its dequantised weights, and errors for files that don't fit."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from tiers import tiered
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine_server import EngineArgs
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.checkpoints.compressed_tensors import CompressedTensors
from engine_server.modeling.formats.checkpoints.gptq import Gptq
from engine_server.modeling.formats.checkpoints.stored import StoredTensor
from engine_server.modeling.formats.codecs import E4M3, INT4, INT8, Codec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.packed import pack as pack_weights
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.loader.room import needed_bytes
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("shared_trials")]

HIDDEN, GROUP = 64, 16
# The tensors of one quantised module, and the weight that they stand for.
Packed = tuple[dict[str, Tensor], Tensor]
Pack = Callable[[Tensor], Packed]


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = staticmethod(as_loaded)


def words(codes: Tensor, bits: int) -> Tensor:
    """Return codes as a stream of bits, low bits first, in words of 32: [n, m] to [n, m * bits / 32]."""
    streams = [sum(code << bits * place for place, code in enumerate(row)) for row in codes.tolist()]
    size = codes.shape[1] * bits // 8
    data = b"".join(stream.to_bytes(size, "little") for stream in streams)
    return torch.frombuffer(bytearray(data), dtype=torch.int32).view(len(codes), -1).clone()


def grouped(
    weight: Tensor, bits: int, symmetric: bool, group: int = GROUP
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return codes [out, in], scales and zero points [out, in / group], and the weight that they stand for."""
    groups = weight.view(len(weight), -1, group)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    half = 1 << bits - 1
    if symmetric:
        scales = torch.maximum(-low, high) / half
        zeros = torch.full_like(scales, half)
    else:
        scales = (high - low) / (2 * half - 1)
        zeros = (-low / scales).round().clamp(1, 2 * half - 1)
    scales = scales.half().float()
    codes = (groups / scales + zeros).round().clamp(0, 2 * half - 1)
    dense = (scales * (codes - zeros)).view_as(weight)
    return codes.int().view_as(weight), scales.squeeze(-1), zeros.int().squeeze(-1), dense


def gptq(bits: int, symmetric: bool, desc_act: bool = False, offset: int = 1) -> Pack:
    def pack(weight: Tensor) -> Packed:
        inputs = weight.shape[1]
        order = torch.arange(inputs)
        if desc_act:
            order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        codes, scales, zeros, dense = grouped(weight[:, order], bits, symmetric)
        back = torch.argsort(order)
        return {
            "qweight": words(codes[:, back], bits).t(),
            "qzeros": words((zeros - offset).t(), bits),
            "scales": scales.t().half(),
            "g_idx": (torch.arange(inputs) // GROUP)[back].int(),
        }, dense[:, back]

    return pack


def awq(weight: Tensor) -> Packed:
    codes, scales, zeros, dense = grouped(weight, 4, False)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def interleaved(values: Tensor) -> Tensor:
        return words(values.unflatten(-1, (-1, 8))[..., order].flatten(-2), 4)

    return {
        "qweight": interleaved(codes.t()),
        "qzeros": interleaved(zeros.t()),
        "scales": scales.t().half(),
    }, dense


def packed_integers(bits: int, symmetric: bool) -> Pack:
    def pack(weight: Tensor) -> Packed:
        codes, scales, zeros, dense = grouped(weight, bits, symmetric)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros.t(), bits).t()
        return tensors, dense

    return pack


def int8_channels(weight: Tensor) -> Packed:
    codes, scales, _, dense = grouped(weight, 8, True, weight.shape[1])
    return {
        "weight": (codes - 128).to(torch.int8),
        "weight_scale": scales,
        "input_scale": torch.ones(1),
    }, dense


def float8(blocks: Callable[[Tensor], tuple[int, int]], name: str = "weight_scale") -> Pack:
    """blocks: the outputs and inputs of a weight that share a scale."""

    def pack(weight: Tensor) -> Packed:
        rows, columns = blocks(weight)
        shape = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
        scales = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
        whole = scales.repeat_interleave(rows, 0)[: weight.shape[0]]
        whole = whole.repeat_interleave(columns, 1)[:, : weight.shape[1]]
        codes = (weight / whole).to(torch.float8_e4m3fn)
        return {"weight": codes, name: scales}, codes.float() * whole

    return pack


def compressed(form: str, bits: int = 4, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, **weights}}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": {"group_0": group}
    }  # fmt: skip


def gptq_settings(bits: int, **options: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP} | options


PER_TENSOR = float8(lambda weight: tuple(weight.shape))
PER_OUTPUT = float8(lambda weight: (1, weight.shape[1]))
PER_BLOCK = float8(lambda weight: (24, 24), "weight_scale_inv")
FORMATS: dict[str, tuple[dict[str, Any], Pack, Codec]] = {
    "gptq 2": (gptq_settings(2), gptq(2, False), INT4),
    "gptq 3": (gptq_settings(3), gptq(3, False), INT4),
    "gptq 4": (gptq_settings(4), gptq(4, False), INT4),
    "gptq 8": (gptq_settings(8), gptq(8, False), INT8),
    "gptq 3 symmetric": (gptq_settings(3), gptq(3, True), INT4),
    "gptq 4 symmetric, v2": (
        gptq_settings(4, checkpoint_format="gptq_v2"), gptq(4, True, offset=0), INT4
    ),
    "gptq desc_act": (gptq_settings(4, desc_act=True), gptq(4, False, desc_act=True), INT4),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, INT4),
    "W4A16": (compressed("pack-quantized"), packed_integers(4, True), INT4),
    "W4A16, zero points": (compressed("pack-quantized"), packed_integers(4, False), INT4),
    "W8A16": (compressed("pack-quantized", 8), packed_integers(8, True), INT8),
    "W8A8": (compressed("int-quantized", 8), int8_channels, INT8),
    "FP8 per tensor": (compressed("float-quantized", 8), PER_TENSOR, E4M3),
    "FP8 per output": (compressed("float-quantized", 8), PER_OUTPUT, E4M3),
    "FP8 in blocks": (
        {"quant_method": "fp8", "weight_block_size": [24, 24]}, PER_BLOCK, E4M3
    ),
    "FBGEMM": ({"quant_method": "fbgemm_fp8"}, PER_OUTPUT, E4M3),
}  # fmt: skip


@pytest.fixture(scope="module")
def dense() -> dict[str, Tensor]:
    """The weights of a llama with biases in attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1,
        vocab_size=96, max_position_embeddings=64, attention_bias=True, dtype="float32",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return weights | {"config": config.to_dict()}


def is_quantised(name: str) -> bool:
    return name.endswith("proj.weight")


def write(folder: Path, dense: dict[str, Any], settings: dict[str, Any], pack: Pack) -> dict[str, Tensor]:
    """Write a checkpoint and return the dense weights that it stands for."""
    (folder / "config.json").write_text(json.dumps(dense["config"] | {"quantization_config": settings}))
    tensors, expected = {}, {}
    for name, weight in dense.items():
        if name == "config":
            continue
        if is_quantised(name):
            parts, expected[name] = pack(weight)
            module = name.removesuffix(".weight")
            tensors.update({f"{module}.{own}": part.contiguous() for own, part in parts.items()})
        else:
            tensors[name] = expected[name] = weight
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return expected


def loaded(folder: Path, platform: CpuPlatform | None = None, **options: Any) -> Any:
    settings = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, **options
    ).create_engine_config()
    return load_model(settings.model_config, settings.load_config, platform or KeepsWeights(), Communicator())


def check(model: Any, expected: dict[str, Tensor]) -> None:
    for name, weight in expected.items():
        if is_quantised(name):
            module = name.removesuffix(".weight")
            values = torch.randn(3, weight.shape[1])
            output = F.linear(values, weight, expected.get(f"{module}.bias"))
            torch.testing.assert_close(model.get_submodule(module)(values), output, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "format",
    tiered(
        FORMATS, "gptq desc_act", "awq", "W4A16, zero points", "FP8 in blocks",
        more=["gptq 4", "gptq 3 symmetric", "W8A8", "FP8 per tensor", "FBGEMM"],
    ),
)  # fmt: skip
def test_layers_compute_with_the_weights_that_the_checkpoint_stands_for(
    tmp_path: Path, dense: dict[str, Any], format: str
) -> None:
    settings, pack, codec = FORMATS[format]
    expected = write(tmp_path, dense, settings, pack)
    model = loaded(tmp_path)
    check(model, expected)
    down = model.model.layers[0].mlp.down_proj.format
    if format == "gptq desc_act":
        down = down.product
    assert down.form.codes is codec
    assert not hasattr(model.config, "quantization_config")
    dequantised = loaded(tmp_path, load_format="dequantized")
    check(dequantised, expected)
    assert isinstance(dequantised.model.layers[0].mlp.down_proj.format, DenseFormat)


def test_torch_layout_of_a_cpu_multiplies_with_dequantised_weights(
    tmp_path: Path, dense: dict[str, Any]
) -> None:
    settings, pack, _ = FORMATS["gptq desc_act"]
    expected = write(tmp_path, dense, settings, pack)
    check(loaded(tmp_path, CpuPlatform()), expected)


def edit(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


DOWN = "model.layers.0.mlp.down_proj"


def set_nan(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors[name].view(-1)[:1].fill_(torch.nan)


def narrow(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: tensors[name][:, :-1].contiguous()})


def drop(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("gptq 4", set_nan(f"{DOWN}.scales"), f"{DOWN}.scales contains NaN"),
        ("gptq 4", narrow(f"{DOWN}.qzeros"), f"{DOWN}.qzeros has the shape"),
        ("gptq 4", drop(f"{DOWN}.scales"), f"{DOWN}.qweight has no scales beside it"),
        ("awq", narrow(f"{DOWN}.scales"), f"{DOWN}.scales has the shape"),
        ("W4A16", narrow(f"{DOWN}.weight_packed"), f"{DOWN}.weight_packed has the shape"),
        ("W4A16", set_nan(f"{DOWN}.weight_scale"), f"{DOWN}.weight_scale contains NaN"),
        ("W8A8", drop(f"{DOWN}.weight_scale"), f"{DOWN}.weight has no weight_scale beside it"),
        ("FP8 in blocks", narrow(f"{DOWN}.weight_scale_inv"), f"{DOWN}.weight_scale_inv is F32"),
        ("FP8 per tensor", set_nan(f"{DOWN}.weight_scale"), f"{DOWN}.weight_scale contains NaN"),
    ],
)
def test_tensor_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, dense: dict[str, Any], format: str, change: Callable[..., None], message: str
) -> None:
    settings, pack, _ = FORMATS[format]
    write(tmp_path, dense, settings, pack)
    edit(tmp_path, change)
    with pytest.raises(ValueError, match=re.escape(message)):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quantized with bitsandbytes, which is not supported; known are awq, comp",
        ),
        ({}, "quantized with None, which is not supported; known are"),
        (gptq_settings(5), "GPTQ with 5 bits is not supported; known are 2, 3, 4 and 8"),
        (gptq_settings(4, checkpoint_format="marlin"), "the GPTQ form marlin is not supported"),
        (
            {"quant_method": "awq", "bits": 4, "version": "gemv"},
            "the AWQ form gemv is not supported; known is gemm",
        ),
        (compressed("marlin-24"), "the compressed-tensors form marlin-24 is not supported"),
        (compressed("pack-quantized", 3), "compressed-tensors with [3] bits are not supported"),
        ({"quant_method": "fp8"}, "says that weights are quantized with fp8, and none is"),
        ({"quant_method": "integers", "version": 2}, "version 2 of integers is not supported; known is 1"),
    ],
)
def test_unknown_format_is_refused_with_those_that_are_known(
    tmp_path: Path, dense: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    write(tmp_path, dense, settings, lambda weight: ({"weight": weight}, weight))
    with pytest.raises(ValueError, match=re.escape(message)):
        loaded(tmp_path)


def test_quantised_checkpoint_is_not_quantised_again(tmp_path: Path, dense: dict[str, Any]) -> None:
    settings, pack, _ = FORMATS["awq"]
    write(tmp_path, dense, settings, pack)
    with pytest.raises(ValueError, match="quantization is int8; its weights are already quantized, with awq"):
        loaded(tmp_path, quantization="int8")


def test_estimate_of_memory_knows_which_weights_stay_quantised(tmp_path: Path, dense: dict[str, Any]) -> None:
    settings, pack, _ = FORMATS["W4A16"]
    weights = write(tmp_path, dense, settings, pack)
    checkpoint = QuantizedCheckpoint(tmp_path, settings, "config.json")
    numbers = {name: weight.numel() for name, weight in weights.items()}
    quantised = sum(count for name, count in numbers.items() if is_quantised(name))
    others = 4 * (sum(numbers.values()) - quantised)
    as_stored = quantised // 2 + 4 * quantised // GROUP
    for layout, made_dense, expected in (
        (as_loaded, False, others + as_stored),
        (as_loaded, True, others + 4 * quantised),
        (pack_weights, False, others + 4 * quantised),
    ):
        stored = checkpoint.state(torch.float32, made_dense)
        found = needed_bytes(tmp_path, stored, torch.float32, layout, True)
        assert abs(found - expected) <= 16 * len(numbers)


@pytest.mark.parametrize("format", tiered(["FP8 in blocks", "awq", "gptq desc_act", "W8A8"], "awq"))
def test_experts_stored_one_by_one_stay_quantised(tmp_path: Path, format: str) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, intermediate_size=32, moe_intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_experts=3, num_experts_per_tok=2, vocab_size=96, dtype="float32",
        max_position_embeddings=64,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    settings, pack, _ = FORMATS[format]
    stored = load_file(tmp_path / "model.safetensors") | {"config": config.to_dict()}
    expected = write(tmp_path, stored, settings, pack)
    model = loaded(tmp_path)
    products = model.model.layers[0].mlp.experts.products
    for number in range(3):
        own = f"model.layers.0.mlp.experts.{number}"
        gate_up = torch.cat([expected[f"{own}.gate_proj.weight"], expected[f"{own}.up_proj.weight"]])
        for name, weight in (("gate_up_proj", gate_up), ("down_proj", expected[f"{own}.down_proj.weight"])):
            found = products[name][number]
            assert isinstance(getattr(found, "product", found), QuantizedFormat)
            torch.testing.assert_close(found.apply(torch.eye(weight.shape[1])), weight.t())
    check(model, {name: weight for name, weight in expected.items() if "self_attn" in name})


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_packed_by_compressed_tensors_are_read_as_it_unpacks_them(bits: int, symmetric: bool) -> None:
    codes = torch.randint(-(1 << bits - 1), 1 << bits - 1, (24, HIDDEN), dtype=torch.int8)
    zeros = torch.randint(-(1 << bits - 1), 1 << bits - 1, (24, HIDDEN // GROUP), dtype=torch.int8)
    packed, packed_zeros = pack_to_int32(codes, bits), pack_to_int32(zeros, bits, packed_dim=0)
    assert torch.equal(words(codes.int() + (1 << bits - 1), bits), packed)
    assert torch.equal(words((zeros.int() + (1 << bits - 1)).t(), bits).t(), packed_zeros)
    scales = torch.rand(24, HIDDEN // GROUP)
    stored = {"weight_packed": packed, "weight_scale": scales, "weight_shape": torch.tensor([24, HIDDEN])}
    if not symmetric:
        stored["weight_zero_point"] = packed_zeros
    scheme = CompressedTensors(compressed("pack-quantized", bits))
    parts = {name: StoredTensor(name, TensorSlice(tensor)) for name, tensor in stored.items()}
    read = scheme.weights(parts)["weight"][...]
    centred = codes.float().view(24, -1, GROUP) - (0 if symmetric else zeros[..., None])
    torch.testing.assert_close(read + 0, (scales[..., None] * centred).view(24, HIDDEN))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_greatest_stored_zero_point_of_gptq_stands_for_the_next_number(bits: int) -> None:
    """The older form stores zero points less 1: the greatest code is 2 ** bits, and doesn't wrap."""
    greatest = (1 << bits) - 1
    codes, zeros = torch.full((32, 32), greatest), torch.full((1, 32), greatest)
    stored = {
        "qweight": words(codes.t(), bits).t(),
        "qzeros": words(zeros, bits),
        "scales": torch.ones(1, 32),
    }
    parts = {name: StoredTensor(name, TensorSlice(tensor)) for name, tensor in stored.items()}
    read = Gptq(gptq_settings(bits, group_size=32)).weights(parts)["weight"][...]
    torch.testing.assert_close(read + 0, torch.full((32, 32), -1.0))


class TensorSlice:
    """A tensor with the interface of a slice object of safetensors."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor[index]

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        return {torch.int32: "I32", torch.int64: "I64", torch.float32: "F32"}[self.tensor.dtype]
