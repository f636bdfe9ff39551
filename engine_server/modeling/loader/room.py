"""The memory that a model's weights take on one rank, known before they are read."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from engine_server.config import QuantizationConfig
from engine_server.contract.cluster.memory_shortage import MemoryShortage
from engine_server.model_sources.folder import weight_bytes
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.float4 import Float4Format
from engine_server.modeling.formats.float8 import Float8Format
from engine_server.modeling.formats.integer import IntegerFormat
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.packed import PackedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.weight_format import WeightFormat, WeightLayout
from engine_server.modeling.layers.gated_experts import WEIGHTS, outputs_first
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.rounding import BITS
from engine_server.modeling.platform.interface import Platform

SCALE_BYTES = 4
FLOAT8_BITS = 8
# Weights [64, 64] of each form, from which a layout's choice is seen.
ONES = DenseFormat(torch.ones(64, 64, dtype=torch.bfloat16))
SAMPLES: dict[type[QuantizedFormat], WeightFormat] = {
    IntegerFormat: rounded_to_integers(ONES, 8, 64),
    Float8Format: rounded_to_float8(ONES),
    Float4Format: Float4Format(
        torch.zeros(64, 32, dtype=torch.uint8), torch.zeros(64, 2, dtype=torch.uint8), None, torch.bfloat16
    ),
}


def check_room(needed: int, platform: Platform, ranks: int) -> None:
    """Raise ValueError, with both sizes, if one rank's share of `needed` bytes doesn't fit."""
    needed, free = needed // ranks, platform.free_memory()
    if needed > free:
        raise ValueError(f"weights: {MemoryShortage(needed >> 20, free >> 20, platform.device.type)}")


def needed_bytes(
    folder: Path,
    checkpoint: QuantizedCheckpoint | None,
    dtype: torch.dtype | None,
    layout: WeightLayout,
    dense: bool,
    formatted: bool,
) -> int:
    """Return the size of a checkpoint's weights in memory.

    dtype: that of dense weights; None: as stored. layout: decides which formats are kept. dense: none is kept.
    formatted: experts are kept like other weights.
    """
    if checkpoint is None or dtype is None:
        return weight_bytes(folder, None if dtype is None else dtype.itemsize)
    kept = {form for form in SAMPLES if not dense and keeps(layout, form)}
    total = 0
    for name, tensor in checkpoint.tensors.items():
        if (
            isinstance(tensor, StoredWeight)
            and tensor.form in kept
            and (formatted or ".experts." not in name)
        ):
            total += sum(stored_bytes(part) for part in tensor.parts)
        else:
            total += prod(tensor.shape) * dtype.itemsize
    return total


def stored_bytes(tensor: StoredTensor) -> int:
    """Return the size of a tensor in its file."""
    sizes = {"64": 8, "32": 4, "16": 2}
    return prod(tensor.shape) * next((size for bits, size in sizes.items() if tensor.dtype.endswith(bits)), 1)


def saved_bytes(
    model: PreTrainedModel,
    quantization: QuantizationConfig | None,
    dtype: torch.dtype,
    layout: WeightLayout,
    formatted: frozenset[type],
) -> int:
    """Return the memory that rounding while loading saves; `model` is on the meta device.

    formatted: classes of experts that are rounded too.
    """
    if quantization is None:
        return 0
    form = Float8Format if quantization.method == "fp8" else IntegerFormat
    bits = BITS.get(quantization.method, FLOAT8_BITS)
    saved: int = 0
    if keeps(layout, form):
        for outputs, inputs in rounded_shapes(backbone(model), formatted):
            groups = inputs // (quantization.group_size or inputs)
            saved += outputs * (inputs * dtype.itemsize - inputs * bits // 8 - groups * SCALE_BYTES)
    return saved


def rounded_shapes(model: nn.Module, formatted: frozenset[type]) -> Iterator[tuple[int, int]]:
    """Return the numbers of outputs and inputs of the linear layers and experts that are rounded."""
    for module in model.modules():
        if type(module) is nn.Linear:
            yield module.out_features, module.in_features
        elif type(module) is Conv1D:
            yield module.nf, module.nx
        elif type(module) in formatted:
            for name in WEIGHTS:
                experts, outputs, inputs = outputs_first(module, name)
                yield experts * outputs, inputs


def keeps(layout: WeightLayout, form: type[QuantizedFormat]) -> bool:
    """Return True if a layout keeps weights of this form quantised."""
    arranged = SAMPLES[form].arranged(layout)
    return not isinstance(arranged, DenseFormat | NativeFloatingFormat | PackedFormat)
