"""The part of a layer that one rank computes, and the combination of the ranks' results.

Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053): of a column-parallel layer each rank computes some outputs; a
row-parallel layer takes those as inputs, and its results are summed over the ranks.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.weight_format import Cut, RowFormat, WeightFormat


class Sharding(Protocol):
    """One rank's share of a layer."""

    @property
    def cut(self) -> Cut:
        """The part of the weight that the rank keeps."""

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """Return the result of the layer; `format` is this rank's part of its weight."""


@dataclass(frozen=True)
class Columns:
    """Column parallelism: each rank computes some outputs, which are its inputs of the next layer."""

    cut: Cut

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """Return this rank's outputs: [..., in] to [..., out / ranks]."""
        return format.apply(values)


@dataclass(frozen=True)
class GatheredColumns:
    """Column parallelism in which all ranks gather the `width` outputs."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """Return all outputs: [..., in] to [..., width]."""
        return self.ranks.gather(format.apply(values))[..., : self.width]


@dataclass(frozen=True)
class Rows:
    """Row parallelism: each rank takes `width` of the inputs, and the results are summed."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, values: Tensor) -> Tensor:
        """Return the sum over the ranks: [..., in or in / ranks] to [..., out]."""
        if values.shape[-1] != self.width:
            values = values.narrow(-1, self.ranks.rank * self.width, self.width)
        return self.ranks.sum(format.apply(values))


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary parallelism: each rank has the embeddings of `width` tokens, and the results are summed."""

    cut: Cut
    ranks: Communicator
    width: int

    def compute(self, format: WeightFormat, token_ids: Tensor) -> Tensor:
        """Return the embeddings: [...] to [..., hidden]."""
        rows = token_ids - self.ranks.rank * self.width
        elsewhere = (rows < 0) | (rows >= self.width)
        assert isinstance(format, RowFormat)
        states = format.gather(rows.masked_fill(elsewhere, 0))
        return self.ranks.sum(states.masked_fill(elsewhere.unsqueeze(-1), 0))
