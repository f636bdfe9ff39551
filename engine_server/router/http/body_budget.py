"""The memory that the bodies of all requests share, and those that wait for room in it."""

from collections.abc import Hashable
from typing import Protocol

from engine_server.shared.shares import Shares, most_of_one

# Bodies up to this size have a part of the budget for themselves, so that large ones never keep them out.
SMALL_BYTES = 64 * 1024
RESERVED_PART = 8
# The owner of claims, and what they leave.
Queue = tuple[Hashable, int]


class Claimant(Protocol):
    """A connection that has received a part of a body."""

    # The sender of the body.
    owner: str

    def admit(self) -> None:
        """Go on: the claim was granted."""
        ...

    def forget_body(self) -> None:
        """Give up the body that is kept in case that a stream has to be continued."""
        ...


class BodyBudget:
    """Bytes of bodies, from their arrival to the end of their exchanges, of what streams hold, and of unread answers.

    Each sender has a share, and its claims for large bodies are granted in order, and so are those for small ones. If
    one finds no room, kept bodies are forgotten first: the largest ones, of senders that hold no less than it does.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Kept bodies that were forgotten.
        self.forgotten = 0
        self._shares = Shares(limit)
        self._reserve = limit // RESERVED_PART
        # Sizes of claims by claimant, in a queue for each owner and what its claims leave.
        self._waiting: dict[Queue, dict[Claimant, int]] = {}
        # Sizes of kept bodies.
        self._kept: dict[Claimant, int] = {}
        self._admitting = False

    @property
    def used(self) -> int:
        """The bytes that were taken."""
        return self._shares.used

    @property
    def largest_body(self) -> int:
        """The size of the largest body for which there is ever room."""
        return most_of_one(self.limit - self._reserve)

    def claim(self, size: int, total: int, claimant: Claimant) -> bool:
        """Take `size` bytes and return True, or return False and call the claimant's `admit` once they are taken.

        total: the bytes that the claimant has then.
        """
        owner, leaving = claimant.owner, 0 if total <= SMALL_BYTES else self._reserve
        if not (self._waiting and (owner, leaving) in self._waiting) and (
            self._shares.claim(owner, size, leaving) or self._claim_kept(owner, size, leaving)
        ):
            return True
        self._waiting.setdefault((owner, leaving), {})[claimant] = size
        return False

    def claim_now(self, owner: Hashable, size: int) -> bool:
        """Take `size` bytes and return True, or return False if there is no room for them now."""
        leaving = self._reserve
        return self._shares.claim(owner, size, leaving) or self._claim_kept(owner, size, leaving)

    def claim_unread(self, owner: Hashable, size: int) -> bool:
        """Take `size` bytes of an answer, also of the part for small bodies; return False if there is no room."""
        return self._shares.claim(owner, size) or self._claim_kept(owner, size, 0)

    def withdraw(self, claimant: Claimant) -> None:
        """Forget a claim that was not granted."""
        self._remove(claimant)
        self._admit()

    def release(self, owner: Hashable, size: int) -> None:
        """Return `size` bytes that were taken."""
        self._shares.release(owner, size)
        if self._waiting:
            self._admit()

    # Kept bodies

    def keep(self, claimant: Claimant, size: int) -> None:
        """Count a claimant's body of `size` bytes, which were taken, as one that may be forgotten."""
        self._kept[claimant] = size
        for (owner, leaving), claims in [*self._waiting.items()]:
            self._make_room(owner, next(iter(claims.values())), leaving)
        self._admit()

    def unkeep(self, claimant: Claimant) -> None:
        """Count a claimant's body no longer as one that may be forgotten."""
        self._kept.pop(claimant, None)

    def _claim_kept(self, owner: Hashable, size: int, leaving: int) -> bool:
        if not self._kept:
            return False
        self._make_room(owner, size, leaving)
        return self._shares.claim(owner, size, leaving)

    def _make_room(self, owner: Hashable, size: int, leaving: int) -> None:
        """Forget kept bodies until a claim is possible, or none is left that it may replace."""
        shares, admitting = self._shares, self._admitting
        least = shares.held(owner)
        replaceable = [one for one in self._kept if shares.held(one.owner) >= least]
        replaceable.sort(key=self._kept.__getitem__)
        self._admitting = True  # the room is for this claim
        while replaceable and not shares.allows(owner, size, leaving):
            self.forgotten += 1
            replaceable.pop().forget_body()
        self._admitting = admitting

    # Waiting claims

    def _remove(self, claimant: Claimant) -> None:
        for queue in ((claimant.owner, 0), (claimant.owner, self._reserve)):
            claims = self._waiting.get(queue, {})
            if claims.pop(claimant, None) is not None and not claims:
                del self._waiting[queue]

    def _admit(self) -> None:
        # A claimant that goes on may release bytes at once: the loop then looks again at those before.
        if self._admitting:
            return
        self._admitting = True
        try:
            while [queue for queue in [*self._waiting] if self._admit_next(queue)]:
                pass
        finally:
            self._admitting = False

    def _admit_next(self, queue: Queue) -> bool:
        """Grant the first claim of a queue if there is room for it."""
        claims = self._waiting.get(queue)
        if not claims:
            return False
        claimant, size = next(iter(claims.items()))
        owner, leaving = queue
        if not self._shares.claim(owner, size, leaving):
            return False
        self._remove(claimant)
        claimant.admit()
        return True
