"""Hashes of blocks, by which requests find what others have computed."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from engine_server.contract.base.bounded_map import BoundedMap

# Blocks whose hashes are found together.
STRETCH = 64


class Stretch(NamedTuple):
    """Consecutive blocks of tokens, and all that their hashes depend on."""

    # The hash of the block before, and through it of all before that; for the first block, of what else decides.
    parent: bytes
    # Of all blocks, 4 bytes each.
    tokens: bytes
    # What a block's hash depends on besides tokens, for each of the blocks; () if none depends on more.
    extras: Sequence[bytes] = ()

    def hashes(self, block_size: int) -> list[bytes]:
        """Return the hash of each block of `block_size` tokens. They are the same in every process."""
        size, parent, hashes = 4 * block_size, self.parent, []
        for index, start in enumerate(range(0, len(self.tokens), size)):
            content = parent + self.tokens[start : start + size]
            parent = hashlib.sha256(content + self.extras[index] if self.extras else content).digest()
            hashes.append(parent)
        return hashes


class KnownHashes:
    """The hashes of stretches that were hashed before; those that were used the longest ago give way."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        """num_blocks: of which hashes are kept, at least a stretch."""
        self.block_size = block_size
        # Blocks that were hashed, and not found.
        self.num_made = 0
        self._hashes = BoundedMap[Stretch, list[bytes]](max(1, num_blocks // STRETCH))

    def of(self, stretch: Stretch) -> list[bytes]:
        """Return the hashes of a stretch, which are kept if it is whole. They must not be changed."""
        found = self._hashes.find(stretch)
        if found is not None:
            return found
        made = stretch.hashes(self.block_size)
        self.num_made += len(made)
        if len(made) == STRETCH:
            self._hashes.keep(stretch, made)
        return made
