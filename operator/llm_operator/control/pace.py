"""The number of reconciles at a time: fewer while the API server has no time for so many."""

import asyncio
from dataclasses import dataclass, field

# Two, so that an object about which no call ends doesn't hold up all others.
LEAST = 2


@dataclass(slots=True)
class Pace:
    """A limit on concurrent reconciles. An outage lowers it by one; as many successes as it allows raise it by one.

    A call that takes too long is given up and made again, so with too many at a time none would ever end.
    """

    most: int
    allowed: int = field(init=False)
    # Since the number of places has changed.
    successes: int = 0
    places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.allowed = self.most
        self.places = asyncio.Semaphore(self.most)

    async def begin(self) -> None:
        """Wait for a place; `end` gives it back."""
        await self.places.acquire()

    def end(self, is_outage: bool, was_answered: bool) -> None:
        """End a reconcile.

        is_outage: it failed, since a call was not answered in time.
        was_answered: a call of any reconcile was answered since this one began.
        """
        if is_outage and not was_answered and self.allowed > LEAST:
            self._allow(self.allowed - 1)
            return
        self.successes += was_answered and not is_outage
        if self.successes >= self.allowed < self.most:
            self._allow(self.allowed + 1)
            self.places.release()
        self.places.release()

    def _allow(self, places: int) -> None:
        self.allowed, self.successes = places, 0
