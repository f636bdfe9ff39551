"""The products that a kind of device has, by the form of the weights."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch

from engine_server.modeling.formats.codecs import Codec
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.grouped import Form, GroupedFormat
from engine_server.modeling.formats.weight_format import WeightFormat


class Product(NamedTuple):
    """A product with quantised weights."""

    # Returns None for a weight that it can't multiply, which its form doesn't show.
    of: Callable[[GroupedFormat], WeightFormat | None]
    # A group has a multiple of this number of inputs.
    multiple: int = 1
    # Of values; None: any.
    dtypes: Collection[torch.dtype] | None = None


# By the codecs of codes and scales.
Products = Mapping[tuple[Codec, Codec], Product]


class ProductTable:
    """A device's `WeightLayout`. Quantised weights without a product in it are dequantised once, at load."""

    def __init__(self, products: Products, dense: Callable[[DenseFormat], WeightFormat]) -> None:
        """dense: returns the product with a dense weight."""
        self._products, self._dense = products, dense

    def product(self, form: Form, dtype: torch.dtype) -> Product | None:
        """Return the product of values of `dtype` with weights of a form, which is chosen before they are read."""
        found = self._products.get((form.codes, form.scales))
        if found is None or form.group % found.multiple:
            return None
        return found if found.dtypes is None or dtype in found.dtypes else None

    def __call__(self, format: WeightFormat) -> WeightFormat:
        if isinstance(format, GroupedFormat):
            product = self.product(format.form, format.dtype)
            found = None if product is None else product.of(format)
            return self._dense(format.dequantised()) if found is None else found
        return self._dense(format) if isinstance(format, DenseFormat) else format


class _AsLoaded(ProductTable):
    def product(self, form: Form, dtype: torch.dtype) -> Product:
        return Product(lambda format: format)


# Of devices on which a checkpoint's formats multiply.
as_loaded = _AsLoaded({}, lambda format: format)
