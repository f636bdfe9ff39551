"""Limits per minute: a window for what is counted in advance, and a debt for what is counted afterwards."""

MINUTE = 60
# The current second, and the 60 before it: any 60 seconds lie within.
NUM_SLOTS = MINUTE + 1


class Window:
    """The number of events in the last minute, by second. A limit on it is never exceeded in any 60 seconds."""

    __slots__ = ("_newest", "_slots", "_total")

    def __init__(self) -> None:
        self._slots = [0] * NUM_SLOTS
        self._total = 0
        # The second, on the clock of the callers, that is counted in its slot at present.
        self._newest = 0

    def add(self, now: float, number: int) -> None:
        """Count events at the time `now`, in seconds."""
        if now >= self._newest + 1:
            self._advance(int(now))
        self._slots[self._newest % NUM_SLOTS] += number
        self._total += number

    def total(self, now: float) -> int:
        """Return the number of events in the last minute."""
        if now >= self._newest + 1:
            self._advance(int(now))
        return self._total

    def seconds_until_below(self, limit: int, now: float) -> float:
        """Return the time after which the total is below `limit` if nothing is added."""
        remaining = self.total(now)
        second = self._newest - MINUTE
        while remaining >= limit:
            remaining -= self._slots[second % NUM_SLOTS]
            second += 1
        return max(0.0, second + MINUTE - now)

    def _advance(self, second: int) -> None:
        for passed in range(self._newest + 1, min(second, self._newest + NUM_SLOTS) + 1):
            self._total -= self._slots[passed % NUM_SLOTS]
            self._slots[passed % NUM_SLOTS] = 0
        self._newest = second


class Debt:
    """Tokens that were used and are repaid continuously, at a limit per minute. Without a limit nothing is owed.

    A caller may owe up to a minute's tokens, and more through requests that were admitted before.
    """

    __slots__ = ("_owed", "_since", "per_minute")

    def __init__(self, per_minute: int | None) -> None:
        self.per_minute = per_minute
        self._owed = 0.0
        self._since = 0.0

    def add(self, now: float, tokens: float) -> None:
        """Add to what is owed at the time `now`, in seconds. What turns out not to be owed is negative."""
        if self.per_minute is not None:
            repaid = (now - self._since) * self.per_minute / MINUTE
            self._owed = max(0.0, tokens + (self._owed - repaid if repaid < self._owed else 0.0))
            self._since = now

    def owed(self, now: float) -> float:
        """Return what is not yet repaid."""
        if self.per_minute is None:
            return 0.0
        return max(0.0, self._owed - (now - self._since) * self.per_minute / MINUTE)

    def seconds_until_repaid(self, now: float) -> float:
        """Return the time after which less than a minute's tokens are owed if nothing is added; 0.0 if that is so."""
        if self.per_minute is None or self._owed < self.per_minute:
            return 0.0
        excess = self.owed(now) - self.per_minute
        if excess < 0:
            return 0.0
        # A whole token less, since the limit itself is not below the limit.
        return (excess + 1) * MINUTE / self.per_minute
