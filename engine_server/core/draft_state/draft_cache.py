"""The part of a running request that a draft model has computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine_server.core.cache.block_table import BlockTable
from engine_server.modeling.attention.interface import IntArray


@dataclass(slots=True)
class DraftCache:
    """A request's tokens and drafts in the draft model's cache, which has the blocks of the target's table."""

    # Number of the request's tokens in the cache.
    computed: int = 0
    # Drafts in the cache after them.
    drafts: list[int] = field(default_factory=list)
    # The allocations of the blocks that hold them.
    allocations: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def confirm(self, token_ids: Sequence[int], table: BlockTable, row: int) -> None:
        """Count the drafts that have become the request's tokens, and drop what a preemption has taken.

        row: the request's row of the table.
        """
        for draft in self.drafts:
            if token_ids[self.computed] != draft or self.computed == len(token_ids) - 1:
                break
            self.computed += 1
        blocks = table.first_blocks(row, len(self.allocations) * table.block_size)
        changed = np.flatnonzero(table.whole_pool.allocations[blocks] != self.allocations)
        if len(changed):
            self.computed = min(self.computed, int(changed[0]) * table.block_size)

    def keep(self, drafts: list[int], table: BlockTable, row: int) -> None:
        """Remember the drafts in the cache, and the allocations of its blocks."""
        self.drafts = drafts
        blocks = table.first_blocks(row, self.computed + len(drafts))
        self.allocations = table.whole_pool.allocations[blocks]
