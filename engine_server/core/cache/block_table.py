"""Block tables: the units of the cache that hold the tokens of each running request."""

from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from engine_server.core.cache.block_pool import BlockPool, Key
from engine_server.modeling.cache.spec import CacheSpec, whole_kind

# Stands for a unit in the cells between two columns of a row that have one.
NO_UNIT = -1


class BlockTable:
    """The block ids of running requests: `ids` is int32 [kinds, rows, columns], with one row per request.

    A kind is a spec of a cache, which says what blocks a row needs. Layers of one kind share their blocks, and kinds
    may share a pool. A row gets the blocks that it needs of all pools, or none. Token t of the request in row r is
    stored in block `ids[kind, r, t // block_size]`, K and V at offset t % block_size. Blocks that no later token needs
    are released; their cells, and those of columns without a block, are undefined.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        rows: int,
        max_tokens: int,
        block_size: int,
        specs: Sequence[CacheSpec],
    ) -> None:
        """pools: of each kind."""
        # Each pool once, and with its kinds.
        self.pools = list(dict.fromkeys(pools))
        self._kinds_by_pool = [
            (one, [kind for kind, own in enumerate(pools) if own is one]) for one in self.pools
        ]
        # By kind: its pool, and the pool's number.
        self.pool_of = tuple(pools)
        self._numbers = [self.pools.index(pool) for pool in pools]
        self.block_size = block_size
        self.specs = tuple(specs)
        # The kinds that release blocks while a row is open.
        self._releasing = [(kind, spec) for kind, spec in enumerate(specs) if not spec.keeps_all]
        # The kind of the states of recurrent layers; None: there is none.
        self.state_kind = next((kind for kind, spec in enumerate(specs) if spec.is_state), None)
        # By row: the block of the latest state that the row has published, and its key; None: there is none, or it is
        # one of those that stay.
        self._latest: list[tuple[int, Key] | None] = [None] * rows
        # Without those that always have the blocks of all rows.
        self._limiting = [
            pool for pool, kinds in self._kinds_by_pool if not self._holds_all(pool, kinds, rows)
        ] or self.pools
        shape = (len(self.specs), rows, self._num_blocks(max_tokens))
        self.ids: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        # By kind and row: the columns from the first to the last that have a block.
        self._columns = [[range(0)] * rows for _ in self.specs]
        # By row: the number of tokens up to which no block has to be taken or released.
        self._unchanged_until = [0] * rows
        # By row: the number of blocks that were cached when it was opened.
        self._found = [0] * rows
        # By kind and row: the number of columns whose blocks are published, or never will be; and the least of a row.
        self._published = [[0] * rows for _ in self.specs]
        self._num_published = [0] * rows
        self._free_rows = list(range(rows - 1, -1, -1))
        # By kind and row: the first column whose block is new since the last `take_changes`.
        self._changed_from: dict[tuple[int, int], int] = {}

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def num_free(self) -> int:
        """Number of free blocks of the pool that has the fewest, among those that can keep a request waiting."""
        return min([pool.num_free for pool in self._limiting], default=0)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1, of the fullest pool, among those that can keep a request waiting."""
        return max([pool.usage for pool in self._limiting], default=0.0)

    @property
    def whole_kind(self) -> int:
        """The kind that keeps the whole context. There must be one."""
        kind = whole_kind(self.specs)
        assert kind is not None, "no kind keeps the whole context"
        return kind

    @property
    def whole_pool(self) -> BlockPool:
        """The pool of the kind that keeps the whole context."""
        return self.pool_of[self.whole_kind]

    def first_blocks(self, row: int, num_tokens: int) -> npt.NDArray[np.int64]:
        """Return the ids of the blocks of the whole context that hold a row's first tokens."""
        return self.ids[self.whole_kind, row, : self._num_blocks(num_tokens)].astype(np.int64)

    def columns(self, kind: int, row: int) -> range:
        """Return the columns of a row from the first to the last that have a block."""
        return self._columns[kind][row]

    def num_cached(self, hashes: Sequence[bytes]) -> int:
        """Return the number of tokens in the longest cached prefix of the blocks with these hashes.

        Only blocks that the next token needs must be cached.
        """
        if all(spec.keeps_all for spec in self.specs):
            return self.num_whole(hashes)
        longest = 0
        # By kind: the column from which on all blocks up to the present one are cached.
        cached_from = [0] * len(self.specs)
        for count, digest in enumerate(hashes, 1):
            for kind, spec in enumerate(self.specs):
                if (kind, digest) not in self.pool_of[kind]:
                    if spec.keeps_all:
                        return longest * self.block_size
                    cached_from[kind] = count
            if all(
                start <= self._first_column(spec, count * self.block_size)
                for start, spec in zip(cached_from, self.specs, strict=True)
            ):
                longest = count
        return longest * self.block_size

    def num_whole(self, hashes: Sequence[bytes]) -> int:
        """Return the number of tokens in the longest prefix whose units are cached of each kind that keeps all."""
        for count, digest in enumerate(hashes):
            for kind, spec in enumerate(self.specs):
                if spec.keeps_all and (kind, digest) not in self.pool_of[kind]:
                    return count * self.block_size
        return len(hashes) * self.block_size

    def num_missing(self, hashes: Sequence[bytes], cached: int, num_tokens: int, total: int) -> list[int]:
        """Return the free blocks of each kind needed to open a row with `cached` tokens and grow it to `num_tokens`.

        The arguments are those of `open` and `grow`.
        """
        count, missing = cached // self.block_size, []
        for kind, spec in enumerate(self.specs):
            held = range(self._first_column(spec, cached), count)
            new = len(spec.new_columns(count, num_tokens, total, self.block_size))
            if spec.is_state:  # which goes on in place of the one that it finds, if there is no other
                missing.append(new)
                continue
            missing.append(new + self.pool_of[kind].num_free_of((kind, hashes[column]) for column in held))
        return missing

    def has_free(self, counts: Sequence[int]) -> bool:
        """Return True if the pools have `counts` free blocks of each kind."""
        for pool, kinds in self._kinds_by_pool:  # noqa: SIM110 - a generator takes longer
            if sum([counts[kind] for kind in kinds]) > pool.num_free:
                return False
        return True

    def open(self, hashes: Sequence[bytes], cached: int) -> int:
        """Take a row that begins with `cached` tokens, as `num_cached` counts them, and return its number."""
        row, count = self._free_rows.pop(), cached // self.block_size
        for kind, spec in enumerate(self.specs):
            columns = range(self._first_column(spec, cached), count)
            block_ids = [self.pool_of[kind].hold((kind, hashes[column])) for column in columns]
            self.ids[kind, row, columns.start : columns.stop] = block_ids
            self._columns[kind][row] = columns
            self._changed_from[kind, row] = columns.start
            self._published[kind][row] = count
        self._found[row] = self._num_published[row] = count
        return row

    def grow(self, row: int, computed: int, num_tokens: int, total: int) -> bool:
        """Make room for the tokens from `computed` to `num_tokens`.

        Return False and take nothing if a pool has too few blocks.
        total: the row's known tokens; a kind may get room for all, so that a prompt that has begun can be finished.
        """
        if num_tokens <= self._unchanged_until[row]:
            return True
        for kind, spec in self._releasing:
            self._release_before(kind, row, self._first_column(spec, computed))
        added = [
            spec.new_columns(columns[row].stop, num_tokens, total, self.block_size)
            for spec, columns in zip(self.specs, self._columns, strict=True)
        ]
        counts = [len(new) for new in added]
        in_place = self.state_kind if self._goes_on_in_place(row) else None
        if in_place is not None:
            counts[in_place] = 0
        if not self.has_free(counts):
            return False
        for kind, new in enumerate(added):
            if not new:
                continue
            if kind == self.state_kind:
                self._replace_latest(row, None)  # by the one that this step leaves behind
            block_ids = (
                self._take_over(kind, row) if kind == in_place else self.pool_of[kind].allocate(len(new))
            )
            columns = self._columns[kind][row]
            if new.start > columns.stop:
                self.ids[kind, row, columns.stop : new.start] = NO_UNIT
            self.ids[kind, row, new.start : new.stop] = block_ids
            self._columns[kind][row] = range(columns.start, new.stop)
            self._changed_from.setdefault((kind, row), new.start)
        self._unchanged_until[row] = self._next_change(row)
        return True

    def num_published(self, row: int) -> int:
        """Return the number of a row's first columns whose blocks were cached at its opening, or published."""
        return self._num_published[row]

    def steady_until(self, row: int, publishes: bool) -> int:
        """Return the number of tokens up to which no block of a row is taken, released or, if any are, published."""
        unchanged = self._unchanged_until[row]
        return min(unchanged, (self._num_published[row] + 1) * self.block_size) if publishes else unchanged

    def take_changes(self) -> npt.NDArray[np.int32]:
        """Return the cells of open rows that changed since the last call, [4, n]: kind, row, column and block id."""
        if not self._changed_from:
            return np.zeros((4, 0), dtype=np.int32)
        held = [self._columns[kind][row] for kind, row in self._changed_from]
        starts, stops = np.array([(columns.start, columns.stop) for columns in held]).T
        firsts = np.maximum(list(self._changed_from.values()), starts)
        counts = stops - firsts
        kinds, rows = np.repeat(np.array(list(self._changed_from)).T, counts, axis=1)
        columns = np.arange(len(rows)) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        self._changed_from.clear()
        return np.stack([kinds, rows, columns, self.ids[kinds, rows, columns]]).astype(np.int32)

    def publish(
        self,
        row: int,
        hashes: Sequence[bytes],
        count: int,
        computed: int,
        num_tokens: int,
        kept: Container[int] = (),
    ) -> None:
        """Let other requests hold the first `count` blocks of a row by their hashes, starting with this step.

        The step computes the tokens from `computed` to `num_tokens`. Blocks that others may only read later are
        published by a later call. Of a row's states the latest takes the place of the one before it, unless that is in
        one of the columns `kept`.
        """
        least = count
        for kind, spec in enumerate(self.specs):
            columns, published = self._columns[kind][row], self._published[kind]
            end = min(count, spec.readable(computed, num_tokens) // self.block_size)
            for column in range(published[row], end):
                # It may have been released before its tokens were known. A state is that of a column's end if the row
                # has stopped there; in an earlier column the row's state may be one within the column.
                stopped = not spec.is_state or (column + 1) * self.block_size == computed
                if column in columns and stopped:
                    block_id, key = int(self.ids[kind, row, column]), (kind, hashes[column])
                    self.pool_of[kind].publish(block_id, key)
                    if spec.is_state:
                        self._replace_latest(row, None if column in kept else (block_id, key))
                published[row] = column + 1
            if published[row] < least:
                least = published[row]
        self._num_published[row] = least

    def close(self, row: int, computed: int) -> list[list[int]]:
        """Release a row and its blocks, and return the blocks of each pool that became blank.

        Blocks that the row has published but not filled within `computed` tokens are removed from the pools' indexes.
        """
        blanks: list[list[int]] = [[] for _ in self.pools]
        filled = max(self._found[row], computed // self.block_size)
        for kind, columns in enumerate(self._columns):
            for column in range(max(columns[row].start, filled), self._published[kind][row]):
                self.pool_of[kind].forget(int(self.ids[kind, row, column]))
            blanks[self._numbers[kind]] += self._release_before(kind, row, columns[row].stop)
            columns[row] = range(0)
            self._changed_from.pop((kind, row), None)
        self._unchanged_until[row] = 0
        self._latest[row] = None
        self._free_rows.append(row)
        return blanks

    def reset(self) -> bool:
        """Remove all blocks from the pools' indexes. Return False and change nothing while a block is held."""
        if any(pool.num_free < pool.num_blocks for pool in self.pools):
            return False
        for pool in self.pools:
            pool.reset()
        return True

    def check_integrity(self) -> None:
        """Assert that hold counts match the rows, and that free rows have no blocks."""
        held: list[Counter[int]] = [Counter() for _ in self.pools]
        for kind, rows in enumerate(self._columns):
            for row, columns in enumerate(rows):
                held[self._numbers[kind]].update(self._blocks(kind, row, columns))
        for pool, own in zip(self.pools, held, strict=True):
            pool.check_integrity(own)
        free = set(self._free_rows)
        assert len(free) == len(self._free_rows), "a row is free twice"
        for kind, rows in enumerate(self._columns):
            assert not any(columns for row, columns in enumerate(rows) if row in free), (
                "a free row has blocks"
            )
            assert not any((kind, row) in self._changed_from for row in free), "a free row has changed cells"

    def _holds_all(self, pool: BlockPool, kinds: Sequence[int], rows: int) -> bool:
        """Return True if a pool has the blocks of all rows at once."""
        needed = sum(self.specs[kind].most_units(rows, 0, self.block_size) for kind in kinds)
        return pool.num_blocks >= needed

    def _goes_on_in_place(self, row: int) -> bool:
        """Return True if no state is free, and the row has one that nobody else reads."""
        if self.state_kind is None:
            return False
        columns, pool = self._columns[self.state_kind][row], self.pool_of[self.state_kind]
        if pool.num_free or not columns:
            return False
        return not pool.is_shared(int(self.ids[self.state_kind, row, columns.stop - 1]))

    def _take_over(self, kind: int, row: int) -> list[int]:
        """Return a row's last block, for a later column in which a step replaces it; the step still reads its cell."""
        stop = self._columns[kind][row].stop
        self._release_before(kind, row, stop - 1)
        self._columns[kind][row] = range(stop, stop)
        block_id = int(self.ids[kind, row, stop - 1])
        self.pool_of[kind].forget(block_id)
        return [block_id]

    def _replace_latest(self, row: int, latest: tuple[int, Key] | None) -> None:
        """Forget the state that a row has published before."""
        before, self._latest[row] = self._latest[row], latest
        if before is not None:
            assert self.state_kind is not None
            self.pool_of[self.state_kind].discard(*before)

    def _release_before(self, kind: int, row: int, column: int) -> list[int]:
        """Release the blocks of a row before a column, and return those that became blank."""
        columns = self._columns[kind][row]
        if column <= columns.start:
            return []
        self._columns[kind][row] = range(column, columns.stop)
        return self.pool_of[kind].free(self._blocks(kind, row, range(columns.start, column)))

    def _blocks(self, kind: int, row: int, columns: range) -> list[int]:
        """Return the ids of the blocks in some of a row's columns."""
        block_ids = self.ids[kind, row, columns.start : columns.stop].tolist()
        return [block_id for block_id in block_ids if block_id != NO_UNIT]

    def _next_change(self, row: int) -> int:
        """Return the number of tokens up to which a row needs no further block and none can be released."""
        limits = [columns[row].stop * self.block_size for columns in self._columns]
        for kind, spec in self._releasing:
            limits.append(spec.passed_at((self._columns[kind][row].start + 1) * self.block_size))
        return min(limits, default=0)

    def _first_column(self, spec: CacheSpec, position: int) -> int:
        """Return the first column that the token at a position needs."""
        return max(0, spec.first_needed(position) // self.block_size)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
