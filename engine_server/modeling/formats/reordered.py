"""Quantised weights whose groups are not contiguous inputs, as GPTQ makes them with `desc_act`."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.weight_format import Cut, Weight, WeightFormat, WeightLayout


class ReorderedFormat(QuantizedFormat, Weight):
    """A quantised weight that is multiplied with its inputs in another order."""

    def __init__(self, format: GroupedFormat, order: Tensor) -> None:
        """order: int64 [in]; input number i of `format` is input order[i] of this weight."""
        self.format = format
        self.order = as_parameter(order)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.format.dtype

    @property
    def bias(self) -> nn.Parameter | None:  # type: ignore[override]
        return self.format.bias

    @property
    def shape(self) -> torch.Size:
        return self.format.shape

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.format.parameters() | {"order": self.order}

    def with_bias(self, bias: Tensor | None) -> Self:
        return type(self)(self.format.with_bias(bias), self.order)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self.format.to(device, dtype), self.order.to(device))

    def dense(self) -> Tensor:
        return self.format.dense().index_select(-1, torch.argsort(self.order))

    def gather(self, rows: Tensor) -> Tensor:
        return self.format.gather(rows).index_select(-1, torch.argsort(self.order))

    def shard(self, cut: Cut) -> Weight:
        """Return one rank's part. One of its inputs is dense, since its groups have different numbers of inputs."""
        if cut.dim == 0:
            return type(self)(self.format.shard(cut), self.order)
        return self.dequantised().shard(cut)

    def can_join(self, other: WeightFormat) -> bool:
        return (
            isinstance(other, ReorderedFormat)
            and self.format.can_join(other.format)
            and torch.equal(self.order, other.order)
        )

    @classmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        return cls(GroupedFormat.concat([one.format for one in formats]), formats[0].order)

    def arranged(self, layout: WeightLayout) -> WeightFormat:
        return ReorderedProduct(self.format.arranged(layout), self.order)

    def apply(self, values: Tensor) -> Tensor:
        return self.format.apply(values.index_select(-1, self.order))


class ReorderedProduct(WeightFormat):
    """The product of reordered inputs with a weight in the layout of a device."""

    def __init__(self, product: WeightFormat, order: nn.Parameter) -> None:
        self.product, self.order = product, order

    @property
    def fixed_order(self) -> bool:
        return self.product.fixed_order

    @property
    def opaque(self) -> list[Tensor]:
        return self.product.opaque

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.product.parameters() | {"order": self.order}

    def apply(self, values: Tensor) -> Tensor:
        return self.product.apply(values.index_select(-1, self.order))
