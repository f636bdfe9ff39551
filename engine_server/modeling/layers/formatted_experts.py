"""Gated experts with weight formats of their own, which can be quantised."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor
from engine_server.modeling.formats.stacked import StackedFormat
from engine_server.modeling.formats.weight_format import Weight, WeightFormat, WeightLayout
from engine_server.modeling.layers.gated_experts import GatedExperts


class FormattedExperts(GatedExperts):
    """Gated experts that take over each expert's weight in a layout, after cutting it for this rank."""

    layout: WeightLayout = as_loaded
    # Tensors that wait for the others of their product.
    received: dict[str, Tensor]
    # The formats of a weight, by the name of the parameter.
    products: dict[str, Sequence[WeightFormat]]

    def prepare(self, layout: WeightLayout) -> None:
        super().prepare(layout)
        self.layout, self.received, self.products = layout, {}, {}

    def joined(self, experts: Sequence[WeightFormat]) -> Sequence[WeightFormat]:
        """Return the formats to keep of a weight, given that of each expert."""
        return experts

    def receive(self, name: str, tensor: Tensor) -> None:
        self.received[name] = tensor
        weight = name.removesuffix("_bias")
        if self.received.keys() >= {weight, f"{weight}_bias"} & self._parameters.keys():
            whole = self._experts(self.received.pop(weight), self.received.pop(f"{weight}_bias", None))
            self.products[weight] = self.joined(
                [self.own_part(weight, format).arranged(self.layout) for format in whole]
            )

    def _experts(self, weight: Tensor, bias: Tensor | None) -> Iterator[Weight]:
        """Return the weight [out, in] of each expert."""
        for number in range(len(weight)):
            own_bias = None if bias is None else bias[number]
            if isinstance(weight, QuantizedTensor):
                assert (
                    isinstance(weight.format, StackedFormat)
                    and weight.format.transposed == self.is_transposed
                )
                expert = weight.format.experts[number].with_bias(own_bias)
                assert isinstance(expert, Weight)
                yield expert
            else:
                matrix = weight[number].t().contiguous() if self.is_transposed else weight[number]
                yield DenseFormat(matrix, own_bias)

    def own_part(self, name: str, whole: Weight) -> Weight:
        """Return this rank's part of one expert's weight."""
        cut = self.cut_of_expert(name)
        return whole if cut is None else whole.shard(cut)

    def num_inputs(self, name: str) -> int:
        """Return the number of inputs of an expert's weight on this rank, before it is received."""
        cut, inputs = self.cut_of_expert(name), self.whole_shapes[name][0]
        return inputs if cut is None or cut.dim == 0 else cut.width(inputs)

    def settle(self) -> None:
        for name, parameter in list(self._parameters.items()):
            if parameter is not None and name.removesuffix("_bias") not in self.products:
                self.receive(name, self.received.get(name, parameter))
        formats = [format for formats in self.products.values() for format in formats]
        self.tables = tuple(tensor for format in formats for tensor in format.parameters().values())
        self._parameters.update(dict.fromkeys(self._parameters))
