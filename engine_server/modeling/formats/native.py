"""The products of a CPU with our C++ kernels."""

import torch

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats import native_floating, native_integer, native_minifloat
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
from engine_server.modeling.formats.packed import packed
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.library import kernels

# The capability of CPUs, in torch's terms, with which oneDNN multiplies many rows of a dtype by tiles.
TILES = {torch.bfloat16: "amx_bf16", torch.float16: "amx_fp16"}
PRODUCTS = native_integer.PRODUCTS | native_minifloat.PRODUCTS


def fastest(dense: DenseFormat) -> WeightFormat:
    """Return a weight in the layout of our kernels where they are fastest; otherwise packed by oneDNN or unchanged."""
    ours = native_floating.can_multiply(dense) and not onednn_is_faster(dense.weight.dtype)
    return NativeFloatingFormat(dense) if ours else packed(dense)


def in_fixed_order(dense: DenseFormat) -> WeightFormat:
    """Return a weight in the layout of our kernels, whose products of a row are bitwise independent of other rows.

    Raises UnsupportedModelError for weights that they don't multiply.
    """
    if native_floating.can_multiply(dense):
        return NativeFloatingFormat(dense)
    dtype, shape = str(dense.weight.dtype).removeprefix("torch."), list(dense.weight.shape)
    raise UnsupportedModelError(
        f"batch_invariant: the CPU kernels have no product for a weight of {dtype} and shape {shape}; they take "
        "float32, float16, and bfloat16 with an even number of inputs"
    )


def onednn_is_faster(dtype: torch.dtype) -> bool:
    """Return True if oneDNN multiplies by tiles, with AMX, where our kernels don't."""
    ours = dtype == torch.bfloat16 and kernels().level == "amx"
    return not ours and bool(torch.cpu.get_capabilities().get(TILES.get(dtype, "")))


native = ProductTable(PRODUCTS, fastest)
fix_order = ProductTable(PRODUCTS, in_fixed_order)
