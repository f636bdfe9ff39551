"""Linear layers laid out for the CPU: oneDNN's own weight format, packed once instead of at each call."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """An nn.Linear in float32 or bfloat16: [..., in] to [..., out]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias

    def forward(self, values: Tensor) -> Tensor:
        if values.dtype == torch.float32 and values.numel() == values.shape[-1]:
            # One row alone would be added up in another order than among others, and its bits are to be the same.
            two = self._product(values.reshape(1, -1).repeat(2, 1))
            return two[:1].view(*values.shape[:-1], -1)
        return self._product(values)

    def _product(self, values: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, self.bias, "none", [], "")
        return output


def pack_linears(modules: Iterable[nn.Module]) -> None:
    """Replace every Linear of a CPU model's modules that can be. Its own weight is freed where nothing shares it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    able = {torch.float32}
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        able.add(torch.bfloat16)
    for parent in modules:
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child.weight.dtype in able:
                setattr(parent, name, PackedLinear(child))
