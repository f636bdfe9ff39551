"""The memory that the router needs for one answer."""

from math import ceil

from engine_server.contract.cluster.api import Key
from engine_server.router.http.body_budget import BodyBudget

# Each answer has so much for nothing, and claims more in steps of the same size.
FREE_BYTES = 64 * 1024


class AnswerMemory:
    """Bytes that a stream holds, claimed from the budget of all bodies for the deployment that answers."""

    def __init__(self, budget: BodyBudget, deployment: Key) -> None:
        self._budget = budget
        self._deployment = deployment
        self._claimed = 0

    def cover(self, size: int) -> bool:
        """Hold `size` bytes in all and return True, or return False if there is no room for them."""
        needed = max(0, ceil(size / FREE_BYTES) - 1) * FREE_BYTES
        if needed > self._claimed:
            if not self._budget.claim_now(self._deployment, needed - self._claimed):
                return False
        elif needed < self._claimed:
            self._budget.release(self._deployment, self._claimed - needed)
        self._claimed = needed
        return True
