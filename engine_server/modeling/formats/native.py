"""The choice of a weight format for the products of our C++ kernels."""

import torch

from engine_server.modeling.formats import native_bfloat16, native_integer
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.integer import IntegerFormat
from engine_server.modeling.formats.native_bfloat16 import NativeBfloat16Format
from engine_server.modeling.formats.native_integer import NativeIntegerFormat
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.weight_format import WeightFormat


def native(format: WeightFormat) -> WeightFormat:
    """Return `format` in the layout of our kernels; packed by oneDNN or unchanged if they don't support it."""
    if isinstance(format, IntegerFormat) and native_integer.can_multiply(format):
        return NativeIntegerFormat(format)
    if isinstance(format, DenseFormat) and native_bfloat16.can_multiply(format) and not has_tiles():
        return NativeBfloat16Format(format)
    return pack(format)


def has_tiles() -> bool:
    """Return True for CPUs with AMX: of many rows, oneDNN's products are several times faster than ours there."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))
