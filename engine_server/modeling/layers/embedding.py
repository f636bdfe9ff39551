"""Token embeddings in any weight format, in place of nn.Embedding."""

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.formats.quantized_tensor import format_of
from engine_server.modeling.formats.weight_format import RowFormat, Weight, WeightLayout
from engine_server.modeling.layers.sharding import Sharding
from engine_server.modeling.layers.weight_layer import WeightLayer, derived_class


class Embedding(WeightLayer, nn.Embedding):
    """An embedding, [...] to [..., hidden]. It may share its format with a linear layer that is tied to it."""

    format: RowFormat | None = None
    layout: WeightLayout = as_loaded
    sharding: Sharding | None = None
    # Rows of the table, of which a rank may have a part.
    whole_rows: int

    def forward(self, token_ids: Tensor) -> Tensor:
        assert self.format is not None
        if self.sharding is None:
            return self.format.gather(token_ids)
        return self.sharding.compute(self.format, token_ids)

    def receive(self, name: str, tensor: Tensor) -> None:
        self.take(format_of(tensor, None))

    def take(self, whole: Weight) -> None:
        """Gather from `whole` from now on, or from this rank's part of it."""
        own = whole if self.sharding is None else whole.shard(self.sharding.cut)
        format = own.arranged(self.layout)
        assert isinstance(format, RowFormat)
        self.format = format

    def settle(self) -> None:
        if self.format is None:
            self.take(format_of(self.weight, None))
        assert self.format is not None
        dtype = self.weight.dtype
        self.hold(self.format, dtype)
        if self._parameters["weight"] is None:  # Gemma's forward reads its dtype
            device = self.tables[0].device
            self.weight = nn.Parameter(torch.empty(0, dtype=dtype, device=device), requires_grad=False)


def receive_embeddings(embedding: nn.Embedding) -> Embedding:
    """Make `embedding` an `Embedding`. If its class has its own forward, that still runs and calls ours."""
    kind = type(embedding)
    embedding.__class__ = Embedding if kind is nn.Embedding else derived_class((kind, Embedding), kind)
    assert isinstance(embedding, Embedding)
    embedding.whole_rows = embedding.num_embeddings
    return embedding
