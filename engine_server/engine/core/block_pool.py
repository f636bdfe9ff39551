"""The KV cache's blocks: who holds which."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class BlockPool:
    """Hands out block ids from 0 to `num_blocks` - 1, the last freed first, while it is still warm in caches."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - len(self._free) / self.num_blocks if self.num_blocks else 0.0

    def allocate(self, count: int) -> list[int]:
        assert count <= len(self._free)
        return [self._free.pop() for _ in range(count)]

    def free(self, block_ids: list[int]) -> None:
        self._free.extend(reversed(block_ids))


class BlockTable:
    """Which blocks hold a running request's tokens: `ids` is int32 [kinds, rows, blocks a row], one row a request.

    A kind of attention is a window, or None for the whole context, and layers of one kind share a table. Token t
    of the request in row r lies in block `ids[kind, r, t // block_size]`, at t % block_size. Blocks that a window
    has passed are given back; what the table says of them means nothing.
    """

    def __init__(
        self,
        pool: BlockPool,
        rows: int,
        max_tokens: int,
        block_size: int,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.windows = tuple(windows)
        shape = (len(self.windows), rows, self._blocks(max_tokens))
        self.ids: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self._held = [[range(0)] * rows for _ in self.windows]  # places of each row that have a block
        self._settled = [0] * rows  # up to so many tokens no block has to come or go
        self._free_rows = list(range(rows - 1, -1, -1))

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def open(self) -> int:
        """Take an empty row."""
        return self._free_rows.pop()

    def grow(self, row: int, computed: int, num_tokens: int, total: int) -> bool:
        """Make room for the tokens from `computed` to `num_tokens`; False, and no block taken, where the pool is short.

        Without a window there will be room for `total` tokens, so that a prompt that was begun can be finished.
        """
        if num_tokens <= self._settled[row]:
            return True
        ends = [self._blocks(total if window is None else num_tokens) for window in self.windows]
        for kind, window in enumerate(self.windows):
            self._drop(kind, row, self._first(window, computed))
        missing = [max(0, end - held[row].stop) for end, held in zip(ends, self._held, strict=True)]
        if sum(missing) > self.pool.num_free:
            return False
        for kind, count in enumerate(missing):
            held = self._held[kind][row]
            self.ids[kind, row, held.stop : held.stop + count] = self.pool.allocate(count)
            self._held[kind][row] = range(held.start, held.stop + count)
        self._settled[row] = self._settled_until(row)
        return True

    def close(self, row: int) -> None:
        """Give the row and its blocks back."""
        for kind, held in enumerate(self._held):
            self._drop(kind, row, held[row].stop)
            held[row] = range(0)
        self._settled[row] = 0
        self._free_rows.append(row)

    def _drop(self, kind: int, row: int, first: int) -> None:
        """Free the blocks of a row before place `first`."""
        held = self._held[kind][row]
        if first > held.start:
            self.pool.free(self.ids[kind, row, held.start : first].tolist())
            self._held[kind][row] = range(first, held.stop)

    def _settled_until(self, row: int) -> int:
        """The number of tokens with which a block has to come, or a window has passed one, less 1."""
        limits = [held[row].stop * self.block_size for held in self._held]
        for window, held in zip(self.windows, self._held, strict=True):
            if window is not None:
                limits.append((held[row].start + 1) * self.block_size + window - 1)
        return min(limits, default=0)

    def _first(self, window: int | None, computed: int) -> int:
        """The first block that the token at position `computed` sees."""
        return 0 if window is None else max(0, computed + 1 - window) // self.block_size

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
