"""Weights in bfloat16 for our C++ kernels, whose results for a row are bitwise independent of other rows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat, as_parameter
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.library import address, kernels

# Outputs whose weights are interleaved, and the successive inputs of one output within them.
BLOCK, INPUTS = 32, 2


class NativeBfloat16Format(WeightFormat):
    """A dense weight in blocks of 32 outputs: [blocks, in / 2, 32, 2]."""

    def __init__(self, dense: DenseFormat) -> None:
        """dense: one that `can_multiply`."""
        self.out_features, self.in_features = dense.weight.shape
        rows = F.pad(dense.weight.detach(), (0, 0, 0, -self.out_features % BLOCK))
        blocks = rows.view(-1, BLOCK, self.in_features // INPUTS, INPUTS)
        self.weight = as_parameter(blocks.transpose(1, 2).contiguous())
        self.bias = None if dense.bias is None else as_parameter(dense.bias.float())

    def parameters(self) -> dict[str, nn.Parameter]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def apply(self, values: Tensor) -> Tensor:
        rows = values.reshape(-1, self.in_features)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        output = values.new_empty(*values.shape[:-1], self.out_features)
        kernels().multiply_bfloat16(
            output.data_ptr(), rows.data_ptr(), rows.stride(0), self.weight.data_ptr(), address(self.bias),
            rows.shape[0], self.in_features, self.out_features,
        )  # fmt: skip
        return output

    def gather(self, rows: Tensor) -> Tensor:
        output = torch.empty(*rows.shape, self.in_features, dtype=torch.bfloat16)
        kernels().gather_bfloat16(
            output.data_ptr(),
            rows.contiguous().data_ptr(),
            self.weight.data_ptr(),
            rows.numel(),
            self.in_features,
        )
        return output


def can_multiply(dense: DenseFormat) -> bool:
    """Check that the kernels support the dtype and the number of inputs of `dense`."""
    return (
        dense.weight.ndim == 2
        and dense.weight.dtype == torch.bfloat16
        and dense.weight.shape[1] % INPUTS == 0
    )
