"""Dense weights for our C++ kernels, whose results for a row are bitwise independent of others."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat, as_parameter
from engine_server.modeling.formats.weight_format import RowFormat
from engine_server.modeling.native.library import PRODUCT_DTYPES, address, as_rows, kernels

# Outputs whose weights are interleaved.
BLOCK = 32


class NativeFloatingFormat(RowFormat):
    """A dense weight in blocks of 32 outputs: [blocks, in, 32], in bfloat16 [blocks, in / 2, 32, 2]."""

    def __init__(self, dense: DenseFormat) -> None:
        """dense: one that `can_multiply`."""
        self.out_features, self.in_features = dense.weight.shape
        rows = F.pad(dense.weight.detach(), (0, 0, 0, -self.out_features % BLOCK))
        blocks = rows.view(-1, BLOCK, self.in_features // inputs_of(rows.dtype), inputs_of(rows.dtype))
        self.weight = as_parameter(blocks.transpose(1, 2).contiguous())
        self.bias = None if dense.bias is None else as_parameter(dense.bias.float())

    @property
    def fixed_order(self) -> bool:
        return True

    def parameters(self) -> dict[str, nn.Parameter]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def apply(self, values: Tensor) -> Tensor:
        rows = as_rows(values)
        output = values.new_empty(*values.shape[:-1], self.out_features)
        kernels().multiply_floating(
            PRODUCT_DTYPES[values.dtype], output.data_ptr(), rows.data_ptr(), rows.stride(0),
            self.weight.data_ptr(), address(self.bias), rows.shape[0], self.in_features, self.out_features,
        )  # fmt: skip
        return output

    def gather(self, rows: Tensor) -> Tensor:
        output = torch.empty(*rows.shape, self.in_features, dtype=self.weight.dtype)
        kernels().gather_floating(
            PRODUCT_DTYPES[self.weight.dtype], output.data_ptr(), rows.contiguous().data_ptr(),
            self.weight.data_ptr(), rows.numel(), self.in_features,
        )  # fmt: skip
        return output


def can_multiply(dense: DenseFormat) -> bool:
    """Check that the kernels support the dtype and the number of inputs of `dense`."""
    weight = dense.weight
    return (
        weight.ndim == 2 and weight.dtype in PRODUCT_DTYPES and weight.shape[1] % inputs_of(weight.dtype) == 0
    )


def inputs_of(dtype: torch.dtype) -> int:
    """Return the number of successive inputs of one output that are stored together."""
    return 2 if dtype == torch.bfloat16 else 1
