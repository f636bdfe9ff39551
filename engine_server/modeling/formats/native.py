"""The choice of a weight format for the products of our C++ kernels."""

import torch

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats import native_floating, native_integer, native_minifloat
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.float4 import Float4Format
from engine_server.modeling.formats.float8 import Float8Format
from engine_server.modeling.formats.integer import IntegerFormat
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.native_integer import NativeIntegerFormat
from engine_server.modeling.formats.native_minifloat import NativeMinifloatFormat
from engine_server.modeling.formats.packed import pack
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.library import kernels

# The capability of CPUs, in torch's terms, with which oneDNN multiplies many rows of a dtype by tiles.
TILES = {torch.bfloat16: "amx_bf16", torch.float16: "amx_fp16"}


def native(format: WeightFormat) -> WeightFormat:
    """Return `format` in the layout of our kernels where they are fastest; otherwise packed by oneDNN or unchanged."""
    found = in_kernel_layout(format) if isinstance(format, QuantizedFormat) else None
    dense = format.dequantised() if found is None and isinstance(format, QuantizedFormat) else format
    if found is None and isinstance(dense, DenseFormat) and not onednn_is_faster(dense.weight.dtype):
        found = in_kernel_layout(dense)
    return found or pack(dense)


def fix_order(format: WeightFormat) -> WeightFormat:
    """Return `format` in a layout whose products of a row are bitwise independent of other rows.

    Weights that our kernels don't multiply as they are stored are dequantised first. Raises UnsupportedModelError for
    those that they don't multiply at all.
    """
    found = in_kernel_layout(format)
    if found is None and isinstance(format, QuantizedFormat):
        found = in_kernel_layout(format.dequantised())
    if found is None:
        raise UnsupportedModelError(
            f"batch_invariant: the CPU kernels have no product for a {describe(format)}; they take float32, float16, "
            "and bfloat16 with an even number of inputs"
        )
    return found


def in_kernel_layout(format: WeightFormat) -> WeightFormat | None:
    """Return `format` in the layout of our kernels, or None if they don't support it."""
    if isinstance(format, IntegerFormat) and native_integer.can_multiply(format):
        return NativeIntegerFormat(format)
    if isinstance(format, Float4Format | Float8Format) and native_minifloat.can_multiply(format):
        return NativeMinifloatFormat(format)
    if isinstance(format, DenseFormat) and native_floating.can_multiply(format):
        return NativeFloatingFormat(format)
    return None


def describe(format: WeightFormat) -> str:
    """Return the dtype and shape of a weight for error messages."""
    dense = format.dequantised() if isinstance(format, QuantizedFormat) else format
    if not isinstance(dense, DenseFormat):
        return type(dense).__name__
    return f"weight of {str(dense.weight.dtype).removeprefix('torch.')} and shape {list(dense.weight.shape)}"


def onednn_is_faster(dtype: torch.dtype) -> bool:
    """Return True if oneDNN multiplies by tiles, with AMX, where our kernels don't."""
    ours = dtype == torch.bfloat16 and kernels().level == "amx"
    return not ours and bool(torch.cpu.get_capabilities().get(TILES.get(dtype, "")))
