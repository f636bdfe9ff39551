"""Quantised weights that our Triton kernels multiply without a dequantised copy."""

from torch import Tensor, nn

from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT, INT4, INT8
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.products import Product, ProductTable
from engine_server.modeling.formats.weight_format import RowFormat
from engine_server.modeling.kernels.codes import FLOAT4, FLOAT8, QuantizedWeight
from engine_server.modeling.kernels.quantized_matmul import multiply

# The kernels' numbers for codecs.
BITS = {INT4: 4, INT8: 8, E4M3: FLOAT8.value, E2M1: FLOAT4.value}


class TritonQuantizedFormat(RowFormat):
    """The tensors of a quantised format, which stay as they are."""

    def __init__(self, format: GroupedFormat) -> None:
        self.format = format

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.format.parameters()

    def apply(self, values: Tensor) -> Tensor:
        return multiply(values, kernel_weight(self.format))

    def gather(self, rows: Tensor) -> Tensor:
        return self.format.gather(rows)


def kernel_weight(format: GroupedFormat) -> QuantizedWeight:
    """Return a weight as the kernels take it."""
    bits = BITS[format.form.codes]
    return QuantizedWeight(
        format.codes, format.scales, format.minima, format.bias, bits, format.form.group, format.factors
    )


FORMS = (INT4, FLOAT), (INT8, FLOAT), (E4M3, FLOAT), (E2M1, E8M0), (E2M1, E4M3)
fuse_dequantisation = ProductTable(dict.fromkeys(FORMS, Product(TritonQuantizedFormat)), lambda dense: dense)
