"""The memory that the bodies of all requests share, and those that wait for room in it."""

from typing import Protocol


class Claimant(Protocol):
    """A connection that has received a part of a body."""

    def admit(self) -> None:
        """Go on: the claim was granted."""
        ...


class BodyBudget:
    """Bytes of bodies, from their arrival to the end of their exchanges. Claims are granted in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Claimant, int] = {}
        self._admitting = False

    def claim(self, size: int, claimant: Claimant) -> bool:
        """Take `size` bytes and return True, or return False and call the claimant's `admit` once they are taken."""
        if self._waiting or (self.used and self.used + size > self.limit):
            self._waiting[claimant] = size
            return False
        self.used += size
        return True

    def withdraw(self, claimant: Claimant) -> None:
        """Forget a claim that was not granted."""
        del self._waiting[claimant]
        self._admit()

    def release(self, size: int) -> None:
        """Return `size` bytes that were taken."""
        self.used -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        # A claimant that goes on may release bytes at once: the loop below then sees them.
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._waiting:
                claimant = next(iter(self._waiting))
                size = self._waiting[claimant]
                if self.used and self.used + size > self.limit:
                    return
                self.used += self._waiting.pop(claimant)
                claimant.admit()
        finally:
            self._admitting = False
