"""Weights whose products are bitwise independent of batch composition, on a GPU with Triton."""

import torch
from torch import Tensor

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form
from engine_server.modeling.formats.products import Product, ProductTable
from engine_server.modeling.kernels.matmul import linear


class FixedOrderFormat(DenseFormat):
    """A dense weight that is multiplied in a fixed order of summation."""

    @property
    def fixed_order(self) -> bool:
        return True

    def apply(self, values: Tensor) -> Tensor:
        return linear(values, self.weight, self.bias)


class _DenseAlone(ProductTable):
    def product(self, form: Form, dtype: torch.dtype) -> Product | None:
        raise UnsupportedModelError(
            "batch_invariant on a GPU takes weights that are not quantized; load_format dequantized makes them dense"
        )


# Products whose rows do not depend on the number of rows. Quantised weights are refused.
fix_order = _DenseAlone({}, lambda dense: FixedOrderFormat(dense.weight, dense.bias))
