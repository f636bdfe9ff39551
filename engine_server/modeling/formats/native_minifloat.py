"""Weights in floats of 8 or 4 bits for our C++ kernels, which expand them in registers."""

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT
from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.native_integer import BLOCK, with_whole_blocks
from engine_server.modeling.formats.products import Product
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.library import DTYPES, address, as_rows, kernels

# Successive inputs of one output that are stored together in 4 bits each, in a word.
INPUTS = 8
# The codes of NaN in E4M3, without their sign.
MAGNITUDE = NAN = 0x7F


class NativeMinifloatFormat(WeightFormat):
    """Codes and scales of float8 and float4 in blocks of 32 outputs: [blocks, ..., 32].

    Values are not rounded. Results of a row are bitwise independent of other rows.
    """

    def __init__(self, format: GroupedFormat) -> None:
        """format: of a form in `PRODUCTS`."""
        self.out_features, self.in_features = format.shape
        self.bits, self.group = format.form.codes.bits, format.form.group
        codes = format.codes if self.bits == 8 else format.codes.contiguous().view(torch.int32)
        scales = format.scales.float() if format.form.scales is FLOAT else format.scales
        self.codes, self.scales = interleaved(codes), interleaved(scales)
        self.factors = None
        if format.factors is not None:
            self.factors = as_parameter(with_whole_blocks(format.factors).flatten())
        self.bias = None if format.bias is None else as_parameter(format.bias.float())

    @property
    def fixed_order(self) -> bool:
        return True

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {"weight": self.codes, "scales": self.scales, "factors": self.factors, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def apply(self, values: Tensor) -> Tensor:
        rows = as_rows(values)
        output = values.new_empty(*values.shape[:-1], self.out_features)
        kernels().multiply_minifloat(
            values.dtype == torch.bfloat16, output.data_ptr(), rows.data_ptr(), rows.stride(0), self.codes.data_ptr(),
            self.scales.data_ptr(), address(self.bias), rows.shape[0], self.in_features, self.out_features, self.group,
            self.bits, address(self.factors),
        )  # fmt: skip
        return output


def without_nan(format: GroupedFormat) -> NativeMinifloatFormat | None:
    """Return the product with float8, or None if a code is a NaN, which the kernels don't know."""
    return None if (format.codes & MAGNITUDE == NAN).any() else NativeMinifloatFormat(format)


def interleaved(rows: Tensor) -> nn.Parameter:
    """Return [out, n] in blocks of outputs: [blocks, n, BLOCK]."""
    return as_parameter(with_whole_blocks(rows).view(-1, BLOCK, rows.shape[1]).transpose(1, 2).contiguous())


PRODUCTS = {
    (E4M3, FLOAT): Product(without_nan, dtypes=DTYPES),
    (E2M1, E8M0): Product(NativeMinifloatFormat, INPUTS, DTYPES),
    (E2M1, E4M3): Product(NativeMinifloatFormat, INPUTS, DTYPES),
}
