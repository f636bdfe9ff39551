"""Integer weights for our C++ kernels: products with values that are quantised to int8, and no dequantised copy."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.codecs import FLOAT, INT4, INT8, split_codes
from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.products import Product
from engine_server.modeling.formats.weight_format import RowFormat
from engine_server.modeling.native.library import PRODUCT_DTYPES, address, as_rows, kernels

# Outputs whose codes are interleaved, and the successive inputs of one output within them.
BLOCK, INPUTS = 32, 4
# Inputs of the groups in which the kernels quantise values, by the bits of weights; 16 where 32 don't divide a weight's
# group. In SmolLM2-135M with weights of 8 bits in groups of 64, groups of values of 64, 32 and 16 give divergences from
# bfloat16 of 0.0075, 0.0057 and 0.0045.
VALUES = {4: 32, 8: 16}
# Groups of weights are a multiple of this number of inputs.
SMALLEST_GROUP = 16
# The exponent of the largest scale or minimum in float16.
EXPONENT = 15


class NativeIntegerFormat(RowFormat):
    """Codes, scales and minima of integers in blocks of 32 outputs.

    The values of each row are quantised in groups of `values_in_group` inputs, by rounding to 8 bits. Results of a row
    are bitwise independent of other rows.
    """

    def __init__(self, format: GroupedFormat) -> None:
        """format: of a form in `PRODUCTS`."""
        self.bits, self.dtype, self.group = format.form.codes.bits, format.dtype, format.form.group
        self.out_features, self.in_features = format.shape
        self.codes = as_parameter(interleaved(format.codes, self.bits))
        tables = [format.scales] if format.minima is None else [format.scales, format.minima]
        # A power of two, so that scales that are read as float16 stay exact.
        self.unit = 2.0 ** (max(math.frexp(float(table.abs().max()))[1] for table in tables) - EXPONENT)
        packed = [self._packed_table(table) for table in tables]
        self.scales, self.minima = packed[0], packed[1] if len(packed) > 1 else None
        self.bias = None if format.bias is None else as_parameter(format.bias.float())

    @property
    def fixed_order(self) -> bool:
        return True

    def parameters(self) -> dict[str, nn.Parameter]:
        held = {"weight": self.codes, "scales": self.scales, "minima": self.minima, "bias": self.bias}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def apply(self, values: Tensor) -> Tensor:
        rows = as_rows(values)
        output = values.new_empty(*values.shape[:-1], self.out_features)
        kernels().multiply_integer(
            PRODUCT_DTYPES[values.dtype], output.data_ptr(), rows.data_ptr(), rows.stride(0), self.codes.data_ptr(),
            self.scales.data_ptr(), address(self.minima), address(self.bias), rows.shape[0], self.in_features,
            self.out_features, self.group, self.bits, self.unit,
        )  # fmt: skip
        return output

    def gather(self, rows: Tensor) -> Tensor:
        output = torch.empty(*rows.shape, self.in_features, dtype=self.dtype)
        kernels().gather_integer(
            PRODUCT_DTYPES[self.dtype], output.data_ptr(), rows.contiguous().data_ptr(), self.codes.data_ptr(),
            self.scales.data_ptr(), address(self.minima), rows.numel(), self.in_features, self.group, self.bits,
            self.unit,
        )  # fmt: skip
        return output

    def _packed_table(self, table: Tensor) -> nn.Parameter:
        """Return scales or minima [out, groups] as float16 [blocks, groups, BLOCK], in multiples of `unit`."""
        blocks = with_whole_blocks(table.float() / self.unit).view(-1, BLOCK, table.shape[1])
        return as_parameter(blocks.transpose(1, 2).half().contiguous())


def values_in_group(group: int, bits: int) -> int:
    """Return the size of the groups in which values are quantised for weights of `bits` bits in groups of `group`."""
    return VALUES[bits] if group % VALUES[bits] == 0 else SMALLEST_GROUP


def interleaved(codes: Tensor, bits: int) -> Tensor:
    """Return codes as in `GroupedFormat` in lines of 128 bytes: uint8 [blocks, lines, BLOCK, INPUTS].

    A line has the codes of `INPUTS` inputs for each output of a block. With 4 bits, the high halves are those of the
    next `INPUTS` inputs.
    """
    if bits == 8:
        return (
            with_whole_blocks(codes)
            .view(-1, BLOCK, codes.shape[1] // INPUTS, INPUTS)
            .transpose(1, 2)
            .contiguous()
        )
    whole = split_codes(codes)
    halves = (
        with_whole_blocks(whole).view(-1, BLOCK, whole.shape[1] // INPUTS // 2, 2, INPUTS).transpose(1, 2)
    )
    return (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).contiguous()


def with_whole_blocks(rows: Tensor) -> Tensor:
    """Return [out, ...] with rows of zeros up to a multiple of BLOCK."""
    return F.pad(rows, (0, 0, 0, -rows.shape[0] % BLOCK)).contiguous()


PRODUCTS = {
    (codec, FLOAT): Product(NativeIntegerFormat, SMALLEST_GROUP, PRODUCT_DTYPES) for codec in (INT4, INT8)
}
