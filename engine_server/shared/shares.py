"""The division of something limited among those who claim parts of it."""

from collections.abc import Hashable

# What one owner may hold at most, as a multiple of what its claim leaves for others.
TIMES_LEFT = 4


class Shares:
    """Amounts of one resource by owner, each bounded by TIMES_LEFT times what is left.

    One owner alone can take 4/5 of all, n owners that take what they get 4 / (4 n + 1) each. Something is always left
    for a newcomer ("dynamic thresholds", Choudhury and Hahne 1998).
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        # By owner that holds any.
        self._held: dict[Hashable, int] = {}

    def held(self, owner: Hashable) -> int:
        """Return the amount that an owner holds."""
        return self._held.get(owner, 0)

    def allows(self, owner: Hashable, size: int, leaving: int = 0) -> bool:
        """Return True if the owner may take `size` more, where `leaving` is to stay free in any case."""
        left = self.limit - self.used - size - leaving
        return self._held.get(owner, 0) + size <= TIMES_LEFT * left

    def claim(self, owner: Hashable, size: int, leaving: int = 0) -> bool:
        """Take `size` more for an owner and return True, or return False if it may not have that much."""
        # As `allows` and `take`, of which each request would pay the calls.
        held, used = self._held.get(owner, 0) + size, self.used + size
        if held > TIMES_LEFT * (self.limit - used - leaving):
            return False
        self._held[owner], self.used = held, used
        return True

    def take(self, owner: Hashable, size: int) -> None:
        """Take `size` more for an owner, whatever it holds."""
        self.used += size
        self._held[owner] = self._held.get(owner, 0) + size

    def release(self, owner: Hashable, size: int) -> None:
        """Return `size` of what an owner holds."""
        self.used -= size
        held = self._held.get(owner, 0) - size
        if held:
            self._held[owner] = held
        else:
            self._held.pop(owner, None)


def most_of_one(limit: int) -> int:
    """Return the amount that one owner can hold if there are no others."""
    return limit * TIMES_LEFT // (TIMES_LEFT + 1)
