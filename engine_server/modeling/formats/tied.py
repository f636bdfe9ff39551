"""The weight that a language model's head shares with its token embedding."""

from torch import Tensor, nn

from engine_server.modeling.formats.weight_format import RowFormat, WeightFormat, WeightLayout


class TiedFormat(RowFormat):
    """A weight that is multiplied in one layout and gathered from another."""

    def __init__(self, product: WeightFormat, rows: RowFormat) -> None:
        self.product = product
        self.rows = rows

    @property
    def fixed_order(self) -> bool:
        return self.product.fixed_order

    @property
    def opaque(self) -> list[Tensor]:
        return [*self.product.opaque, *self.rows.opaque]

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.product.parameters() | self.rows.parameters()

    def apply(self, values: Tensor) -> Tensor:
        return self.product.apply(values)

    def gather(self, rows: Tensor) -> Tensor:
        return self.rows.gather(rows)


def tied(format: RowFormat, layout: WeightLayout) -> RowFormat:
    """Return `format` in `layout`, and with `format` for gathering rows if the layout can't."""
    product = format.arranged(layout)
    return product if isinstance(product, RowFormat) else TiedFormat(product, format)
