"""The KV cache's blocks: who holds which."""

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
        return 1 - len(self._free) / self.num_blocks

    def allocate(self, count: int) -> list[int]:
        assert count <= len(self._free)
        return [self._free.pop() for _ in range(count)]

    def free(self, block_ids: list[int]) -> None:
        self._free.extend(reversed(block_ids))


class BlockTable:
    """Which blocks hold a running request's tokens: `ids` is int32 [rows, blocks a row], one row a request.

    Token t of the request in row r lies in block `ids[r, t // block_size]`, at t % block_size.
    """

    def __init__(self, pool: BlockPool, rows: int, max_tokens: int, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.ids: npt.NDArray[np.int32] = np.zeros((rows, -(-max_tokens // block_size)), dtype=np.int32)
        self._held = [0] * rows  # blocks in each row
        self._free_rows = list(range(rows - 1, -1, -1))

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def open(self) -> int:
        """Take an empty row."""
        return self._free_rows.pop()

    def grow(self, row: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` in all; False, and nothing done, where the pool is short."""
        held = self._held[row]
        missing = -(-num_tokens // self.block_size) - held
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self.ids[row, held : held + missing] = self.pool.allocate(missing)
            self._held[row] = held + missing
        return True

    def close(self, row: int) -> None:
        """Give the row and its blocks back."""
        self.pool.free(self.ids[row, : self._held[row]].tolist())
        self._held[row] = 0
        self._free_rows.append(row)
