"""Linear layers in any weight format, in place of nn.Linear and of transformers' Conv1D."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.joined import join
from engine_server.modeling.formats.quantized_tensor import format_of
from engine_server.modeling.formats.weight_format import Weight, WeightFormat, WeightLayout
from engine_server.modeling.layers.ahead import Ahead
from engine_server.modeling.layers.sharding import Sharding
from engine_server.modeling.layers.weight_layer import WeightLayer


class Linear(WeightLayer, nn.Linear):
    """A linear layer, [..., in] to [..., out]. It derives from nn.Linear so that transformers initializes it as one."""

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, transposed: bool, layout: WeightLayout
    ) -> None:
        """weight: [out, in], or [in, out] where `transposed`; on the meta device until it is loaded."""
        nn.Module.__init__(self)
        self.out_features, self.in_features = reversed(weight.shape) if transposed else weight.shape
        # Inputs and outputs of the layer, of which a rank may compute a part.
        self.whole_shape = self.in_features, self.out_features
        self.transposed = transposed
        self.layout = layout
        self.sharding: Sharding | None = None
        # Indices of the outputs that are computed; None: all.
        self.kept: Sequence[int] | None = None
        # The product that this layer is part of, and its index among the parts.
        self.fused: FusedLinear | None = None
        self.place = 0
        self.format: WeightFormat | None = None
        self.received: dict[str, Tensor] = {}
        self.weight = weight
        self.register_parameter("bias", bias)

    @classmethod
    def of(cls, module: nn.Linear | Conv1D, layout: WeightLayout) -> Self:
        """Return a layer with the parameters of `module`."""
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        assert weight is not None
        return cls(weight, bias, isinstance(module, Conv1D), layout)

    def forward(self, values: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused.output(self.place, values)
        assert self.format is not None
        if self.sharding is None:
            return self.format.apply(values)
        return self.sharding.compute(self.format, values)

    def receive(self, name: str, tensor: Tensor) -> None:
        self.received[name] = tensor
        if self.received.keys() == {name for name, own in self._parameters.items() if own is not None}:
            self.take(format_of(self._outputs_first(self.received["weight"]), self.received.get("bias")))
            self.received = {}

    def keep(self, outputs: Sequence[int]) -> None:
        """Compute these outputs alone, on every rank, from a weight that is yet to be received."""
        self.kept, self.sharding, self.out_features = outputs, None, len(outputs)

    def take(self, whole: Weight) -> None:
        """Use `whole`, or this rank's part of it, as the layer's weight."""
        if self.kept is not None:
            whole = rows_of(whole, self.kept)
        own = whole if self.sharding is None else whole.shard(self.sharding.cut)
        if self.fused is not None:
            self.fused.take(self.place, own)
        else:
            self.format = own.arranged(self.layout)

    def settle(self) -> None:
        if self.format is None and (self.fused is None or self.fused.lacks(self.place)):
            weight, bias = (self.received.get(name, own) for name, own in self._parameters.items())
            assert weight is not None
            self.received = {}
            self.take(format_of(self._outputs_first(weight), bias))
        if self.format is not None:
            self.hold(self.format, self.weight.dtype)
        else:
            self._parameters.update(weight=None, bias=None)

    def _outputs_first(self, weight: Tensor) -> Tensor:
        return weight.t().contiguous() if self.transposed else weight


def rows_of(whole: Weight, rows: Sequence[int]) -> DenseFormat:
    """Return a copy of some rows of a weight in a checkpoint's format, with their bias."""
    parameters = whole.parameters()
    index = torch.tensor(rows, device=next(iter(parameters.values())).device)
    bias = parameters.get("bias")
    return DenseFormat(whole.gather(index), None if bias is None else bias[index])


class FusedLinear(WeightLayer):
    """Several linear layers of one input as one product. Each layer requests its part of the output once."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        """Make the layers parts of this product, and join the formats of those that are loaded."""
        super().__init__()
        self.layout = linears[0].layout
        self.dtype = linears[0].weight.dtype
        self.sizes = [linear.out_features for linear in linears]
        self.parts: list[WeightFormat | None] = [None] * len(linears)
        self.format: WeightFormat | None = None
        # The outputs of the latest input that were not requested yet, by layer index.
        self._outputs = Ahead[dict[int, Tensor]]()
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        for place, linear in enumerate(linears):
            linear.fused, linear.place = self, place
            if linear.format is not None:
                self.take(place, linear.format)
                linear.format = None

    def forward(self, values: Tensor) -> Tensor:
        """Return all outputs, concatenated: [..., in] to [..., sum of out]."""
        assert self.format is not None
        return self.format.apply(values)

    def output(self, place: int, values: Tensor) -> Tensor:
        """Return the outputs of layer number `place`: [..., in] to [..., out]."""
        outputs = self._outputs.get(values)
        if outputs is None:
            parts = torch.split(self.forward(values), self.sizes, dim=-1)
            outputs = self._outputs.put(values, dict(enumerate(parts)))
        output = outputs.pop(place)
        if not outputs:
            self._outputs.forget()
        return output

    def take(self, place: int, part: WeightFormat) -> None:
        """Take over one layer's weight. The last one completes the product."""
        self.parts[place] = part
        parts = [part for part in self.parts if part is not None]
        if len(parts) == len(self.parts):
            self.format = join(parts).arranged(self.layout)
            self.parts = []

    def lacks(self, place: int) -> bool:
        """Return True if layer number `place` has not passed on its weight yet."""
        return self.format is None and self.parts[place] is None

    def settle(self) -> None:
        assert self.format is not None
        self.hold(self.format, self.dtype)
