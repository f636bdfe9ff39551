"""Weights in oneDNN's layout for this CPU, reordered once at load instead of in each product."""

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.formats.weight_format import WeightFormat
from engine_server.modeling.native.recording import one_operation


class PackedFormat(WeightFormat):
    """The product with a dense weight in float32 or bfloat16."""

    def __init__(self, dense: DenseFormat) -> None:
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(dense.weight.detach(), None)
        self.bias = dense.bias

    @property
    def opaque(self) -> list[Tensor]:
        return [self.packed]

    def parameters(self) -> dict[str, nn.Parameter]:
        return {} if self.bias is None else {"bias": self.bias}

    @one_operation
    def apply(self, values: Tensor) -> Tensor:
        if values.dtype == torch.float32 and values.numel() == values.shape[-1]:
            # oneDNN sums a single row in another order than one of several: multiply two, for the same bits.
            two = self._product(values.reshape(1, -1).repeat(2, 1))
            return two[:1].view(*values.shape[:-1], -1)
        return self._product(values)

    def _product(self, values: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, self.bias, "none", [], "")
        return output


def packed(dense: DenseFormat) -> WeightFormat:
    """Return a weight packed, or unchanged if oneDNN doesn't support its dtype."""
    return PackedFormat(dense) if can_pack(dense) else dense


def can_pack(dense: DenseFormat) -> bool:
    """Check that torch has oneDNN, and that oneDNN multiplies this dtype here."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    dtype = dense.weight.dtype
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


# Of a CPU without our kernels.
pack = ProductTable({}, packed)
