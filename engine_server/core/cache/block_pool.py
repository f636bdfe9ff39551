"""The KV cache's blocks: who holds which, and what they are known to contain."""

from collections.abc import Iterable, Sequence
from operator import le

import numpy as np
import numpy.typing as npt

Key = tuple[int, bytes]  # a kind of attention, and the hash of a block's tokens and of all before them


class BlockPool:
    """Blocks 0 to `num_blocks` - 1, each held by any number of tables, and free while none holds it.

    What a block contains may be known by a key. Such a block can be found, and held once more, until another use
    is made of it, for which the blanks come first and then the block that was free for longest.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # the last freed is taken first, warm in caches
        self._cached: dict[int, None] = {}  # free, but known, in the order in which they were freed
        self._keys: dict[int, Key] = {}
        self._blocks: dict[Key, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - self.num_free / max(self.num_blocks, 1)

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def num_free_of(self, keys: Iterable[Key]) -> int:
        """Return how many of the blocks with these contents are free."""
        return sum(self._blocks[key] in self._cached for key in keys)

    def allocate(self, count: int) -> list[int]:
        """Blocks of unknown content, held once each."""
        while len(self._blank) < count:
            oldest = next(iter(self._cached))
            del self._cached[oldest]
            self.forget(oldest)
            self._blank.append(oldest)
        block_ids = [self._blank.pop() for _ in range(count)]
        for block_id in block_ids:
            self._holders[block_id] = 1
        return block_ids

    def hold(self, key: Key) -> int:
        """The block with this content, held once more."""
        block_id = self._blocks[key]
        self._cached.pop(block_id, None)
        self._holders[block_id] += 1
        return block_id

    def publish(self, block_id: int, key: Key) -> None:
        """Let a held block be found; where another with the same content is found already, nothing changes."""
        if self._blocks.setdefault(key, block_id) == block_id:
            self._keys[block_id] = key

    def forget(self, block_id: int) -> None:
        """Let a block be found no more."""
        if key := self._keys.pop(block_id, None):
            del self._blocks[key]

    def free(self, block_ids: list[int]) -> list[int]:
        """Hold blocks once less, the last first, since it is of no use without the others; the new blanks."""
        for block_id in reversed(block_ids):
            self._holders[block_id] -= 1
            if not self._holders[block_id] and block_id in self._keys:
                self._cached[block_id] = None
        blanks = [one for one in block_ids if not self._holders[one] and one not in self._keys]
        self._blank += reversed(blanks)
        return blanks

    def reset(self) -> bool:
        """Forget every block's content; False, and nothing done, while a block is held."""
        if self.num_free < self.num_blocks:
            return False
        self._blank += self._cached
        for known in (self._cached, self._keys, self._blocks):
            known.clear()
        return True


class BlockTable:
    """Which blocks hold a running request's tokens: `ids` is int32 [kinds, rows, blocks a row], one row a request.

    A kind of attention is a window, or None for the whole context, and layers of one kind share a table. Token t
    of the request in row r lies in block `ids[kind, r, t // block_size]`, at t % block_size. Blocks that a window
    has passed are given back; what the table says of them means nothing.
    """

    def __init__(
        self, pool: BlockPool, rows: int, max_tokens: int, block_size: int, windows: Sequence[int | None]
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.windows = tuple(windows)
        shape = (len(self.windows), rows, self._blocks(max_tokens))
        self.ids: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self._held = [[range(0)] * rows for _ in self.windows]  # columns of each row that have a block
        self._unchanged_until = [0] * rows  # up to so many tokens no block has to come or go
        self._found = [0] * rows  # blocks that were cached when the row was opened
        self._published = [0] * rows  # blocks whose content the pool knows
        self._free_rows = list(range(rows - 1, -1, -1))
        # By kind and row: the first column that has another block since the last `take_changes`.
        self._changed_from: dict[tuple[int, int], int] = {}

    def num_cached(self, hashes: Sequence[bytes]) -> int:
        """Return how many tokens a row could begin with, of those whose blocks have these hashes."""
        return self._longest_cached(hashes) * self.block_size

    def num_missing(self, hashes: Sequence[bytes], cached: int, num_tokens: int, total: int) -> int:
        """Return how many free blocks a row takes that begins with `cached` tokens and has room for `num_tokens`.

        Arguments are as those of `open` and `grow`.
        """
        count, missing = cached // self.block_size, 0
        for kind, window in enumerate(self.windows):
            held = range(self._first(window, cached), count)
            missing += self._blocks(total if window is None else num_tokens) - count
            missing += self.pool.num_free_of((kind, hashes[column]) for column in held)
        return missing

    def open(self, hashes: Sequence[bytes], cached: int) -> int:
        """Take a row that begins with the first `cached` tokens, of which all blocks with these hashes are cached."""
        row, count = self._free_rows.pop(), cached // self.block_size
        for kind, window in enumerate(self.windows):
            held = range(self._first(window, cached), count)
            block_ids = [self.pool.hold((kind, hashes[column])) for column in held]
            self.ids[kind, row, held.start : held.stop] = block_ids
            self._held[kind][row] = held
            self._changed_from[kind, row] = held.start
        self._found[row] = self._published[row] = count
        return row

    def grow(self, row: int, computed: int, num_tokens: int, total: int) -> bool:
        """Make room for the tokens from `computed` to `num_tokens`; False, and no block taken, where the pool is short.

        Without a window there will be room for `total` tokens, so that a prompt that was begun can be finished.
        """
        if num_tokens <= self._unchanged_until[row]:
            return True
        ends = [self._blocks(total if window is None else num_tokens) for window in self.windows]
        for kind, window in enumerate(self.windows):
            self._drop(kind, row, self._first(window, computed))
        missing = [max(0, end - held[row].stop) for end, held in zip(ends, self._held, strict=True)]
        if sum(missing) > self.pool.num_free:
            return False
        for kind, count in enumerate(missing):
            if not count:
                continue
            held = self._held[kind][row]
            self.ids[kind, row, held.stop : held.stop + count] = self.pool.allocate(count)
            self._held[kind][row] = range(held.start, held.stop + count)
            self._changed_from.setdefault((kind, row), held.stop)
        self._unchanged_until[row] = self._unchanged_tokens(row)
        return True

    def take_changes(self) -> npt.NDArray[np.int32]:
        """Return the cells of open rows that changed since the last call, [4, n]: kind, row, column and block id."""
        kinds, rows, columns = [], [], []
        for (kind, row), first in self._changed_from.items():
            held = self._held[kind][row]
            changed = np.arange(max(first, held.start), held.stop)
            kinds.append(np.full_like(changed, kind))
            rows.append(np.full_like(changed, row))
            columns.append(changed)
        self._changed_from.clear()
        if not kinds:
            return np.zeros((4, 0), dtype=np.int32)
        cells = np.concatenate(kinds), np.concatenate(rows), np.concatenate(columns)
        return np.stack([*cells, self.ids[cells]]).astype(np.int32)

    def publish(self, row: int, hashes: Sequence[bytes], count: int) -> None:
        """Let the first `count` blocks of a row be found by their hashes, beginning with this very step.

        Those who find them attend to them in this step at the earliest, and each layer writes before it attends.
        """
        for column in range(self._published[row], count):
            for kind, held in enumerate(self._held):
                if column in held[row]:  # a window may have passed it before its tokens were known
                    self.pool.publish(int(self.ids[kind, row, column]), (kind, hashes[column]))
        self._published[row] = max(self._published[row], count)

    def close(self, row: int, computed: int) -> list[int]:
        """Give the row and its blocks back; those that nobody holds or can find now.

        What it published that isn't full within `computed` tokens can't be found any more.
        """
        freed = []
        good = max(self._found[row], computed // self.block_size)
        for kind, rows in enumerate(self._held):
            for column in range(max(rows[row].start, good), self._published[row]):
                self.pool.forget(int(self.ids[kind, row, column]))
            freed += self._drop(kind, row, rows[row].stop)
            rows[row] = range(0)
            self._changed_from.pop((kind, row), None)
        self._unchanged_until[row] = 0
        self._free_rows.append(row)
        return freed

    def _longest_cached(self, hashes: Sequence[bytes]) -> int:
        """Of how many blocks all is cached that the token after them sees."""
        longest = 0
        since = [0] * len(self.windows)  # from which column on all of a kind is cached
        for column, digest in enumerate(hashes, 1):
            for kind, window in enumerate(self.windows):
                if (kind, digest) not in self.pool:
                    if window is None:
                        return longest
                    since[kind] = column
            if all(
                map(le, since, (self._first(window, column * self.block_size) for window in self.windows))
            ):
                longest = column
        return longest

    def _drop(self, kind: int, row: int, first: int) -> list[int]:
        """Give the blocks of a row before column `first` back; the new blanks."""
        held = self._held[kind][row]
        if first <= held.start:
            return []
        self._held[kind][row] = range(first, held.stop)
        return self.pool.free(self.ids[kind, row, held.start : first].tolist())

    def _unchanged_tokens(self, row: int) -> int:
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
