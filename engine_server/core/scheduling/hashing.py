"""Hashing of requests' blocks in slices between steps, so that a long prompt delays no stream."""

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.block_hashes import STRETCH, KnownHashes
from engine_server.core.scheduling.request import Request

# Blocks of long prompts that are hashed in a step, in 1.3 ms of an EPYC with blocks of 16 tokens.
SLICE = 16 * STRETCH
# Hashes that are kept, as a multiple of the blocks of the cache: a conversation may return after its blocks gave way.
TIMES_BLOCKS = 4


class Hashing:
    """The hashes by which requests find cached blocks, of which a step makes a limited number."""

    def __init__(self, table: BlockTable, enabled: bool) -> None:
        """enabled: blocks are cached."""
        num_blocks = max((pool.num_blocks for pool in table.pools), default=0)  # an encoder has none
        self._known = KnownHashes(table.block_size, TIMES_BLOCKS * num_blocks)
        self._enabled = enabled
        # Blocks that are hashed when the step has hashed enough.
        self._most = SLICE

    def begin_step(self) -> None:
        self._most = self._known.num_made + SLICE

    def advance(self, request: Request) -> bool:
        """Hash the blocks of a request that may be cached, up to the step's limit; return True once all are.

        A request that lacks no more than a stretch is hashed at once, so that it need not wait behind long ones.
        """
        count = self._num_cacheable(request)
        while (missing := count - len(request.hashes)) > 0:
            if missing > STRETCH and self._known.num_made >= self._most:
                return False
            self.extend(request, min(count, len(request.hashes) + STRETCH))
        return True

    def of(self, request: Request) -> list[bytes]:
        """Return the hashes of the blocks of a request that may be cached."""
        count = self._num_cacheable(request)
        self.extend(request, count)
        return request.hashes[:count]

    def extend(self, request: Request, count: int) -> None:
        """Hash the first `count` blocks of a request."""
        request.hash_blocks(count, self._known)

    def _num_cacheable(self, request: Request) -> int:
        """Return how many blocks of a request may be cached: all full ones before the last token.

        The last token is always computed, since the next one is sampled from its logits.
        """
        if not self._enabled or not request.reads_prefix_cache:
            return 0
        return (len(request.token_ids) - 1) // self._known.block_size
