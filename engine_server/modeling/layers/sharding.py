"""The part of a layer that one rank computes, and how the ranks' results become the layer's.

Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053): of a column-parallel layer each rank computes some outputs; a
row-parallel layer takes those as inputs, and its results are summed over the ranks.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine_server.modeling.communicator import Communicator
from engine_server.modeling.formats.weight_format import Cut, WeightFormat


class Sharding(Protocol):
    """One rank's share of a layer."""

    @property
    def cut(self) -> Cut:
        """The part of the weight that the rank keeps."""

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """Return the result of the layer, of whose weight `format` is this rank's part."""


@dataclass(frozen=True)
class Columns:
    """Each rank computes some outputs, and the next layer takes them as they are."""

    cut: Cut

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """[..., in] to [..., out / ranks]."""
        return format.apply(values)


@dataclass(frozen=True)
class GatheredColumns:
    """Each rank computes some of `width` outputs, and has all of them afterwards."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """[..., in] to [..., width]."""
        return self.ranks.gather(format.apply(values))[..., : self.width]


@dataclass(frozen=True)
class Rows:
    """Each rank takes `width` of the inputs; the results are summed."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """[..., in or in / ranks] to [..., out]."""
        if values.shape[-1] != self.width:
            values = values.narrow(-1, self.ranks.rank * self.width, self.width)
        return self.ranks.sum(format.apply(values))


@dataclass(frozen=True)
class Vocabulary:
    """Each rank has the embeddings of `width` tokens; the results are summed."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, token_ids: Tensor) -> Tensor:
        """[...] to [..., hidden]."""
        rows = token_ids - self.ranks.rank * self.width
        elsewhere = (rows < 0) | (rows >= self.width)
        states = format.gather(rows.masked_fill(elsewhere, 0))
        return self.ranks.sum(states.masked_fill(elsewhere.unsqueeze(-1), 0))
