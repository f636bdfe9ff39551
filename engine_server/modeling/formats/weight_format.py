"""The interface of a weight format, and the part of a tensor that one rank keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn


class Cut(NamedTuple):
    """Piece number `piece` of `pieces` equal pieces of a tensor along `dim`.

    Where the pieces cannot be equal, the last one is padded with copies of the last row.
    """

    dim: int
    pieces: int
    piece: int
    # Number of tensors concatenated along `dim`, each of which is cut separately: gate and up of experts.
    blocks: int = 1

    def of(self, whole: Tensor) -> Tensor:
        """Return a copy of this piece of `whole`."""
        length = whole.shape[self.dim] // self.blocks
        width = self.width(whole.shape[self.dim]) // self.blocks
        rows = torch.arange(self.piece * width, (self.piece + 1) * width).clamp(max=length - 1)
        rows = (rows + torch.arange(self.blocks)[:, None] * length).flatten()
        return whole.index_select(self.dim, rows.to(whole.device))

    def width(self, length: int) -> int:
        """Return the size of a piece along `dim` of a tensor that has `length` there."""
        return -(-length // self.blocks // self.pieces) * self.blocks


class WeightFormat(ABC):
    """The product with the weight of one layer, and its bias if it has one."""

    @property
    def fixed_order(self) -> bool:
        """True if each row's product is bitwise independent of other rows."""
        return False

    @property
    def opaque(self) -> list[Tensor]:
        """The tensors that are no parameters, since only the library that made them can move or read them."""
        return []

    def arranged(self, layout: "WeightLayout") -> "WeightFormat":
        """Return this in `layout`, or its parts if it has several."""
        return layout(self)

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the tensors that the layer registers, by transformers' names for them."""

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """Return values @ weight.T + bias: [..., in] to [..., out]."""


class RowFormat(WeightFormat):
    """A format that returns rows of its weight too, as an embedding does."""

    @abstractmethod
    def gather(self, rows: Tensor) -> Tensor:
        """Return rows of the weight: int64 [...] to [..., in]."""


class Weight(RowFormat):
    """A weight as a checkpoint has it: it can be cut for a rank, and joined with others of the same input.

    A `WeightLayout` may then convert it to another format, for one kind of device.
    """

    @abstractmethod
    def shard(self, cut: Cut) -> "Weight":
        """Return one rank's part. Of a weight that is cut along its inputs, rank 0 alone keeps the bias."""

    @abstractmethod
    def can_join(self, other: WeightFormat) -> bool:
        """Return True if `concat` joins this with `other`."""

    @classmethod
    @abstractmethod
    def concat(cls, formats: Sequence[Self]) -> Self:
        """Join formats of one input: the outputs of the result are theirs, one after another."""


# Converts a checkpoint's format to the one that multiplies fastest on a device, which may be the same.
WeightLayout = Callable[[WeightFormat], WeightFormat]
