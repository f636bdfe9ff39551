"""Weights with low-rank updates: each row of a step may have its own adapter (LoRA, arXiv 2106.09685)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.weight_format import RowFormat, WeightFormat
from engine_server.modeling.native.library import as_rows

# Elements of a table's rows are padded with zeros to a multiple of this number.
PADDING = 32
# Rows of an embedding that are updated at a time, since each reads a copy of its adapter's whole b. CUDA graphs have no
# more; a CPU's programs are recorded with a few rows, and update all of a step's at once.
GATHERED_ROWS = 512


class LowRankPair(NamedTuple):
    """An adapter's update of one weight: b.T @ a, with the scale in b."""

    # [rank, in]
    a: Tensor
    # [rank, out]
    b: Tensor


class LowRankTable:
    """The updates of weights of one shape for every slot of adapters, zeros beyond each one's rank.

    a: [slots * weights, max_rank, in]; b: [slots * weights, max_rank, out]; both padded along their last dimension.
    ranks: int32 [slots * weights], 0 for an adapter that doesn't change a weight.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        slots: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
        weights: int = 1,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        rows = slots * weights
        self.a = as_parameter(
            torch.zeros(rows, max_rank, inputs + -inputs % PADDING, dtype=dtype, device=device)
        )
        self.b = as_parameter(
            torch.zeros(rows, max_rank, outputs + -outputs % PADDING, dtype=dtype, device=device)
        )
        self.ranks = as_parameter(torch.zeros(rows, dtype=torch.int32, device=device))

    def put(self, slot: int, pairs: Sequence[LowRankPair | None]) -> None:
        """Set the updates of a slot, one for each weight; None: there is none."""
        rows = slice(slot * len(pairs), (slot + 1) * len(pairs))
        if any(pairs):
            self.a[rows] = stacked([pair and pair.a for pair in pairs], self.a)
            self.b[rows] = stacked([pair and pair.b for pair in pairs], self.b)
        else:
            self.a[rows] = 0
            self.b[rows] = 0
        self.ranks[rows] = torch.tensor([0 if pair is None else len(pair.a) for pair in pairs])

    @property
    def tensors(self) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
        return self.a, self.b, self.ranks


def stacked(parts: Sequence[Tensor | None], table: Tensor) -> Tensor:
    """Return rows of a table on the host, so that they are copied to its device at once. None: zeros."""
    rows = torch.zeros(len(parts), *table.shape[1:], dtype=table.dtype)
    for row, part in zip(rows, parts, strict=True):
        if part is not None:
            row[: part.shape[0], : part.shape[1]] = part
    return rows


# Takes out [rows, out], x [rows, in], each row's slot (int32 [rows], -1 for none) and the tensors of a table; adds to
# each row of `out` the update by its adapter.
AddLowRank = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], object]


class StepSlots:
    """The slots of the adapters in the running forward, which all layers read."""

    def __init__(self) -> None:
        # int32 [rows of the layers' inputs], -1 for a row without an adapter. None: no row has one.
        self.rows: Tensor | None = None


class LowRankUpdate(NamedTuple):
    """The updates of some outputs of a weight, from `first` on."""

    first: int
    table: LowRankTable


class LowRankFormat(RowFormat):
    """A weight in any format, and updates of its results by each row's adapter."""

    def __init__(
        self, base: WeightFormat, updates: Sequence[LowRankUpdate], slots: StepSlots, add: AddLowRank
    ) -> None:
        self.base = base
        self.updates = list(updates)
        self._slots = slots
        self._add = add

    @property
    def fixed_order(self) -> bool:
        return self.base.fixed_order

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.base.parameters()

    def apply(self, values: Tensor) -> Tensor:
        output = self.base.apply(values)
        if self._slots.rows is not None:
            rows, results = as_rows(values), output.view(-1, output.shape[-1])
            for first, table in self.updates:
                self._add(results[:, first : first + table.outputs], rows, self._slots.rows, *table.tensors)
        return output

    def gather(self, rows: Tensor) -> Tensor:
        """Return rows of the weight with their updates: a's columns are the weight's rows."""
        assert isinstance(self.base, RowFormat)
        states = self.base.gather(rows)
        if self._slots.rows is None:
            return states
        slots = self._slots.rows.long().view(rows.shape)
        if rows.shape[-1] <= GATHERED_ROWS:
            return states + self._gathered_update(rows, slots)
        pieces = zip(torch.split(rows, GATHERED_ROWS, -1), torch.split(slots, GATHERED_ROWS, -1), strict=True)
        return states + torch.cat([self._gathered_update(*piece) for piece in pieces], -2)

    def _gathered_update(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Return the updates [..., rows, out] of rows of the weight."""
        ((_, table),) = self.updates
        own = slots.clamp(min=0)
        update = torch.einsum("...r,...rh->...h", table.a[own, :, rows], table.b[own])[..., : table.outputs]
        return update.where((slots >= 0).unsqueeze(-1), 0)
