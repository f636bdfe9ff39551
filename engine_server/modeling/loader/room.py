"""The memory that a model's weights take on one rank, known before they are read."""

import logging
from collections import defaultdict
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
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, Weights
from engine_server.modeling.formats.codecs import FLOAT
from engine_server.modeling.formats.grouped import Form
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.layers.gated_experts import WEIGHTS, outputs_first
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.rounding import CODECS
from engine_server.modeling.platform.interface import Platform

SCALE_BYTES = 4
logger = logging.getLogger(__name__)


def check_room(needed: int, platform: Platform, ranks: int, whole: int = 0) -> None:
    """Raise ValueError, with both sizes, if one rank's share of `needed` bytes doesn't fit.

    whole: those among them that each rank has.
    """
    needed, free = (needed - whole) // ranks + whole, platform.free_memory()
    if needed > free:
        raise ValueError(f"weights: {MemoryShortage(needed >> 20, free >> 20, platform.device.type)}")


def needed_bytes(
    folder: Path,
    weights: Weights | None,
    dtype: torch.dtype | None,
    layout: ProductTable,
    formatted: bool,
) -> int:
    """Return the size of a model's weights in memory.

    weights: those of a quantised checkpoint, None of another. dtype: of dense weights; None: as stored. layout,
    formatted: see `held_bytes`.
    """
    if weights is None or dtype is None:
        return weight_bytes(folder, None if dtype is None else dtype.itemsize)
    return held_bytes(weights, dtype, layout, formatted)


def held_bytes(
    weights: Weights,
    dtype: torch.dtype,
    layout: ProductTable,
    formatted: bool,
) -> int:
    """Return the size of weights in memory, and log those that are dequantised since the device has no product.

    dtype: of dense weights. layout: decides which weights stay quantised. formatted: experts do like other weights.
    """
    total, dequantised = 0, defaultdict[str, list[tuple[int, int]]](list)
    for name, tensor in weights.items():
        dense = prod(tensor.shape) * dtype.itemsize
        if isinstance(tensor, StoredTensor) or tensor.dense:
            total += dense
            continue
        stored = sum(stored_bytes(part) for part in tensor.parts)
        has_product = layout.product(tensor.form, tensor.dtype) is not None
        if has_product and (formatted or ".experts." not in name):
            total += stored
        else:
            total += dense
            dequantised[str(tensor.form)].append((stored, dense))
    for form, sizes in dequantised.items():
        stored, dense = map(sum, zip(*sizes, strict=True))
        logger.info(
            "%d weights in %s are dequantised, since this device has no product with them: they take %d MiB, not %d",
            len(sizes), form, dense >> 20, stored >> 20,
        )  # fmt: skip
    return total


def stored_bytes(tensor: StoredTensor) -> int:
    """Return the size of a tensor in its file."""
    sizes = {"64": 8, "32": 4, "16": 2}
    return prod(tensor.shape) * next((size for bits, size in sizes.items() if tensor.dtype.endswith(bits)), 1)


def saved_bytes(
    model: PreTrainedModel,
    quantization: QuantizationConfig | None,
    dtype: torch.dtype,
    layout: ProductTable,
    formatted: frozenset[type],
) -> int:
    """Return the memory that rounding while loading saves; `model` is on the meta device.

    formatted: classes of experts that are rounded too.
    """
    if quantization is None:
        return 0
    codec, saved = CODECS[quantization.method], 0
    for outputs, inputs in rounded_shapes(backbone(model), formatted):
        group = quantization.group_size or inputs
        if layout.product(Form(codec, FLOAT, group), dtype) is not None:
            held = inputs * codec.bits // 8 + inputs // group * SCALE_BYTES
            saved += outputs * (inputs * dtype.itemsize - held)
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
