"""Quantised weights that our Triton kernels multiply without a dequantised copy."""

from torch import Tensor, nn

from engine_server.modeling.formats.float8 import Float8Format
from engine_server.modeling.formats.integer import IntegerFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.kernels.quantized_matmul import float8_linear, integer_linear


class TritonQuantizedFormat(WeightFormat):
    """The tensors of a quantised format, which stay as they are."""

    def __init__(self, format: QuantizedFormat) -> None:
        self.format = format

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.format.parameters()

    def gather(self, rows: Tensor) -> Tensor:
        return self.format.gather(rows)


class TritonIntegerFormat(TritonQuantizedFormat):
    """An `IntegerFormat`."""

    format: IntegerFormat

    def apply(self, values: Tensor) -> Tensor:
        own = self.format
        return integer_linear(values, own.codes, own.scales, own.minima, own.bits, own.group, own.bias)


class TritonFloat8Format(TritonQuantizedFormat):
    """A `Float8Format`."""

    format: Float8Format

    def apply(self, values: Tensor) -> Tensor:
        own = self.format
        return float8_linear(values, own.codes, own.scales, own.group, own.bias)


def fuse_dequantisation(format: WeightFormat) -> WeightFormat:
    """Return a quantised `format` with products that dequantise in registers, and any other unchanged."""
    if isinstance(format, IntegerFormat):
        return TritonIntegerFormat(format)
    return TritonFloat8Format(format) if isinstance(format, Float8Format) else format
