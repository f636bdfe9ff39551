"""The points of a prompt at which the states of recurrent layers stay in the prefix cache.

K and V of a token can be used alone; a state stands for all tokens before a point, so a prompt is cut where its state
is worth keeping: a little before its end, since the end is rendered otherwise once a conversation goes on, and where it
leaves a prefix of which K and V are cached but no state is (Marconi, MLSys '25). A row that goes on leaves its latest
state behind too, in place of the one before.
"""

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.request import Request

# Tokens at the end of a prompt that a conversation's next turn may render otherwise, such as the marks of a role.
UNSTABLE_TOKENS = 8


class Checkpoints:
    """The columns after which prompts are cut, and the requests that wait for a state there."""

    def __init__(self, table: BlockTable, enabled: bool) -> None:
        """enabled: there are states, the prefix cache is in use, and prompts may be cut."""
        self._table = table
        self.enabled = enabled and table.state_kind is not None
        # By column and hash: the running request that will leave a state there.
        self._coming: dict[tuple[int, bytes], Request] = {}
        # Tokens that are computed although their K and V are cached, since the last call of `take_count`.
        self._num_without_state = 0

    def take_count(self) -> int:
        """Return how many tokens were computed although their K and V were cached, since the last call."""
        count, self._num_without_state = self._num_without_state, 0
        return count

    def plan(self, request: Request, hashes: list[bytes], cached: int) -> int:
        """Choose the columns after which a request is cut that begins with `cached` tokens.

        Return how many further tokens have K and V in the cache, but no state.
        """
        if not self.enabled:
            return 0
        size, whole = self._table.block_size, self._table.num_whole(hashes)
        ends = {(len(request.token_ids) - UNSTABLE_TOKENS) // size, whole // size}
        request.checkpoints = tuple(sorted(end - 1 for end in ends if end * size > cached))
        return whole - cached

    def enter(self, request: Request, hashes: list[bytes], without_state: int) -> None:
        """Let others wait for the states of a request that is admitted. without_state: see `plan`."""
        self._num_without_state += without_state
        for column in request.checkpoints:
            if column < len(hashes):
                self._coming[column, hashes[column]] = request

    def cut(self, request: Request, computed: int, count: int) -> int:
        """Return how many of a request's next `count` tokens a step takes, so that it ends at a checkpoint.

        A step that doesn't reach the end of a prompt ends with a block, where a state can stay.
        """
        if not self.enabled or count == 1:
            return count
        size, end = self._table.block_size, computed + count
        for column in request.checkpoints:
            if computed < (column + 1) * size < end:
                return (column + 1) * size - computed
        if end < len(request.token_ids) and end - end % size > computed:
            return count - end % size
        return count

    def awaited_by(self, request: Request, hashes: list[bytes]) -> bool:
        """Return True if a running request is about to leave a state that a waiting one can go on from."""
        kind, size = self._table.state_kind, self._table.block_size
        assert kind is not None
        for (column, digest), owner in list(self._coming.items()):
            left = (kind, digest) in self._table.pool_of[kind] or owner.computed > (column + 1) * size
            if left or owner.row is None:
                del self._coming[column, digest]
            elif column < len(hashes) and hashes[column] == digest:
                return True
        return False
