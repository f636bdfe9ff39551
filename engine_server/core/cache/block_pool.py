"""The KV cache's blocks: reference counts, and an index of cached blocks by their content."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

# A kind of attention, and the hash of a block's tokens and of all before them.
Key = tuple[int, bytes]


class BlockPool:
    """Blocks 0 to `num_blocks` - 1, each held by any number of tables and free while none holds it.

    A block whose content has a key is cached: any table can take another hold of it until it is allocated for other
    content. Blank blocks are allocated first, then the cached block that has been free for longest.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        # By block: the number of its latest allocation, counted over all blocks. It identifies the block's content.
        self.allocations: npt.NDArray[np.int64] = np.zeros(num_blocks, dtype=np.int64)
        self._num_allocations = 0
        # Free blocks without a key. The last freed is taken first, while it is warm in the processor's caches.
        self._blank = list(range(num_blocks - 1, -1, -1))
        # Free blocks with a key, in the order in which they were freed. The first entry of a plain dict is found in a
        # time that grows with those deleted before it.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._keys: dict[int, Key] = {}
        self._blocks: dict[Key, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1 - self.num_free / max(self.num_blocks, 1)

    @property
    def blank_blocks(self) -> tuple[int, ...]:
        """The free blocks without a key."""
        return tuple(self._blank)

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def num_free_of(self, keys: Iterable[Key]) -> int:
        """Return how many of the cached blocks with these keys are free."""
        return sum(self._blocks[key] in self._cached for key in keys)

    def allocate(self, count: int) -> list[int]:
        """Take free blocks, each held once; what they contain is arbitrary. `count` must not exceed `num_free`."""
        while len(self._blank) < count:
            oldest, _ = self._cached.popitem(last=False)
            self.forget(oldest)
            self._blank.append(oldest)
        block_ids = [self._blank.pop() for _ in range(count)]
        for block_id in block_ids:
            self._holders[block_id] = 1
            self._num_allocations += 1
            self.allocations[block_id] = self._num_allocations
        return block_ids

    def hold(self, key: Key) -> int:
        """Increment the hold count of the cached block with this key, and return its id."""
        block_id = self._blocks[key]
        self._cached.pop(block_id, None)
        self._holders[block_id] += 1
        return block_id

    def publish(self, block_id: int, key: Key) -> None:
        """Add a held block to the index, unless another block has the same key already."""
        if self._blocks.setdefault(key, block_id) == block_id:
            self._keys[block_id] = key

    def forget(self, block_id: int) -> None:
        """Remove a block from the index."""
        if key := self._keys.pop(block_id, None):
            del self._blocks[key]

    def discard(self, block_id: int, key: Key) -> None:
        """Remove a block from the index if it has this key; a free one becomes blank."""
        if self._keys.get(block_id) == key:
            self.forget(block_id)
            if block_id in self._cached:
                del self._cached[block_id]
                self._blank.append(block_id)

    def is_shared(self, block_id: int) -> bool:
        """Return True if several tables hold a block."""
        return self._holders[block_id] > 1

    def free(self, block_ids: list[int]) -> list[int]:
        """Release blocks once each, and return those that became blank.

        The last is released first, so that it is allocated before the others, without which its content can't be used.
        """
        for block_id in reversed(block_ids):
            self._holders[block_id] -= 1
            if not self._holders[block_id] and block_id in self._keys:
                self._cached[block_id] = None
        blanks = [one for one in block_ids if not self._holders[one] and one not in self._keys]
        self._blank += reversed(blanks)
        return blanks

    def reset(self) -> None:
        """Remove all blocks from the index. None may be held."""
        self._blank += self._cached
        for index in (self._cached, self._keys, self._blocks):
            index.clear()

    def check_integrity(self, held: Mapping[int, int]) -> None:
        """Assert that each block is either free in one list or counted as held, and that the index is one to one.

        held: how often tables hold each block that they hold.
        """
        assert self._holders == [held.get(block_id, 0) for block_id in range(self.num_blocks)], (
            "the hold counts differ from the blocks in the tables"
        )
        assert sorted([*held, *self._blank, *self._cached]) == list(range(self.num_blocks)), (
            "a block is neither held nor free, or more than one of blank, cached and held"
        )
        assert self._blocks == {key: block_id for block_id, key in self._keys.items()}, (
            "the index by key and the index by block differ"
        )
        assert self._cached.keys() <= self._keys.keys(), "a cached block has no key"
        assert not self._keys.keys() & set(self._blank), "a blank block has a key"
