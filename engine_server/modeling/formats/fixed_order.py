"""Weights whose products are bitwise independent of batch composition, on a GPU with Triton."""

from torch import Tensor

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.kernels.matmul import linear


class FixedOrderFormat(DenseFormat):
    """A dense weight that is multiplied in a fixed order of summation."""

    @property
    def fixed_order(self) -> bool:
        return True

    def apply(self, values: Tensor) -> Tensor:
        return linear(values, self.weight, self.bias)


def fix_order(format: WeightFormat) -> WeightFormat:
    """Return `format` with products whose rows do not depend on the number of rows.

    Raises UnsupportedModelError for quantised weights.
    """
    if not isinstance(format, DenseFormat):
        raise UnsupportedModelError(
            "batch_invariant on a GPU takes weights that are not quantized; load_format dequantized makes them dense"
        )
    return FixedOrderFormat(format.weight, format.bias)
