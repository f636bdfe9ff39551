"""The interface of attention backends: a step's inputs, and the description of a layer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.modeling.cache.layout import Layout, Pages
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring

IntArray = npt.NDArray[np.int64]
Numbers = IntArray | Sequence[int]


class UnsupportedModelError(ValueError):
    """A model that would be computed wrongly; the message states why."""


class StepInputs(NamedTuple):
    """One step's tokens, flat: sequence s owns tokens starts[s] to starts[s] + lengths[s].

    All arrays are int64 but `tables`; T tokens, S sequences. A kind is a spec of the layers' caches.
    """

    # [2 + kinds, T]: `token_ids`, `positions` and `slots`.
    tokens: IntArray
    # [5, S]: the index of the last token, `rows`, `starts`, `lengths` and `contexts`.
    sequences: IntArray
    # [S], the regime of a stretched rope, on which it depends besides positions.
    regimes: IntArray | None = None
    # [T], the slot of each token's adapter, -1 for none; None: no token has one.
    adapters: IntArray | None = None
    # [R, blocks a row] for each kind, the host's block table.
    tables: Sequence[npt.NDArray[np.int32]] = ()
    # The same on the device.
    staged: "Staged | None" = None

    @classmethod
    def of(
        cls,
        rows: Numbers,
        lengths: Numbers,
        contexts: Numbers,
        kinds: int = 0,
        *,
        token_ids: Numbers | int = 0,
        slots: Numbers | int = -1,
        adapters: Numbers | None = None,
        regimes: IntArray | None = None,
    ) -> "StepInputs":
        """Return a step of the last tokens of each sequence's context.

        rows, lengths, contexts, adapters, regimes: of each sequence; lengths: at least 1. token_ids, slots: of each
        token, or one for all of them; slots by a block table: see `place`.
        """
        sequences: IntArray = np.empty((5, len(rows)), dtype=np.int64)
        sequences[1], sequences[3], sequences[4] = rows, lengths, contexts
        counts = sequences[3]
        stops = counts.cumsum()
        sequences[0], sequences[2] = stops - 1, stops - counts
        tokens: IntArray = np.empty((2 + kinds, stops[-1]), dtype=np.int64)
        tokens[0], tokens[2:] = token_ids, slots
        tokens[1] = np.arange(tokens.shape[1]) + (sequences[4] - stops).repeat(counts)
        return cls(tokens, sequences, regimes, None if adapters is None else np.repeat(adapters, counts))

    def place(self, tables: npt.NDArray[np.int32], block_size: int) -> None:
        """Set `slots` by the block table, int32 [kinds, R, blocks a row]."""
        columns = self.positions // block_size
        blocks = tables[:, self.rows.repeat(self.lengths), columns]
        np.add((blocks - columns) * block_size, self.positions, out=self.slots)

    @property
    def token_ids(self) -> IntArray:
        """[T]; -1 - row for a token that only the device knows: the last one of that row of the block table."""
        token_ids: IntArray = self.tokens[0]
        return token_ids

    @property
    def positions(self) -> IntArray:
        """[T], each within its sequence."""
        positions: IntArray = self.tokens[1]
        return positions

    @property
    def slots(self) -> IntArray:
        """[kinds, T], the slot of each token's K and V: block id * block size + offset; -1 for none."""
        return self.tokens[2:]

    @property
    def rows(self) -> IntArray:
        """[S], row of each sequence in `tables`."""
        rows: IntArray = self.sequences[1]
        return rows

    @property
    def starts(self) -> IntArray:
        """[S], index of the first token."""
        starts: IntArray = self.sequences[2]
        return starts

    @property
    def lengths(self) -> IntArray:
        """[S], tokens of this step."""
        lengths: IntArray = self.sequences[3]
        return lengths

    @property
    def contexts(self) -> IntArray:
        """[S], tokens in the cache once this step's are written."""
        contexts: IntArray = self.sequences[4]
        return contexts


class Staged(NamedTuple):
    """One step on the device. All are int32; T tokens, n sequences that sample, R rows of the block table."""

    # [T]; -1 - row for a token that only the device knows: the last one of that row of the block table.
    token_ids: Tensor
    # [T]
    positions: Tensor
    # [kinds, T], the slot of each token's K and V: block id * block size + offset; -1 for none.
    slots: Tensor
    # [sequences with several tokens, 4]: row, index of the first token, tokens, context.
    prefills: Tensor
    # [sequences with one token, 4], likewise.
    decodes: Tensor
    # [kinds, R + 1, blocks a row], the whole block table.
    tables: Tensor
    # [n], indices of the step's tokens whose logits are needed.
    logit_rows: Tensor
    # [n], the sequences' rows of the block table.
    sampling: Tensor
    # [T], the slot of each token's adapter, -1 for none.
    adapters: Tensor


class AttentionBackend(ABC):
    """Attention over one model's KV cache on one kind of device."""

    layout = Layout([], [], [], [], [])
    keys: Sequence[Pages] = ()
    values: Sequence[Pages] = ()
    # Each token's result must be bitwise independent of batch composition.
    invariant = False

    def require_invariance(self, dtype: torch.dtype) -> None:
        """Make each token's result bitwise independent of batch composition.

        dtype: that of queries. Raises UnsupportedModelError if no kernel can do so.
        """
        self.invariant = True

    def describe(self, query_heads: int, dtype: torch.dtype) -> str:
        """Return the name of the backend for the log, and its settings for a number of query heads and their dtype."""
        return type(self).__name__

    @property
    def caches(self) -> list[Tensor]:
        """Return all tensors of the cache, [blocks, ...] each."""
        return [cache for pages in (*self.keys, *self.values) for cache in pages if cache is not None]

    @abstractmethod
    def begin(self, inputs: StepInputs) -> None:
        """Prepare the data that all layers of a step share."""

    @abstractmethod
    def attend(self, layer: int | None, heads: Heads, scoring: Scoring) -> Tensor:
        """Attend over each sequence's whole context, with this step's K and V: [T, query heads, value dim].

        layer: None if an encoder does not number its layers.
        """

    def stage(self, inputs: StepInputs) -> None:  # noqa: B027
        """Prepare a step of decodes that was captured. Does nothing if all data is in `inputs.staged`."""

    def end(self) -> None:  # noqa: B027
        """Forget a step's inputs. To be called after its forward."""

    def step_tensors(self) -> list[Tensor]:
        """Return what this step's captured layers read besides `inputs.staged`, in a fixed order."""
        return []

    def erase(self, block_ids: list[list[int]]) -> None:
        """Zero these blocks of each pool: a NaN makes a weighted sum NaN even with a weight of 0."""
        for pool, keys, values in zip(self.layout.tensor_pools, self.keys, self.values, strict=True):
            for cache in (*keys, *values):
                if cache is not None:
                    cache.view(torch.uint8)[block_ids[pool]] = 0  # by bytes: not every device indexes float8

    def erase_first(self, count: int) -> None:
        """Zero the first blocks of each pool."""
        self.erase([[*range(count)]] * self.layout.num_pools)
