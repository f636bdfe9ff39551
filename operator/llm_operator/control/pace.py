"""The number of reconciles at a time: fewer while the API server has no time for so many."""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Places for reconciles. One is lost with each outage, and one is added after as many successes as there are.

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
        """Wait for a place. The caller passes it on with `answered` or `unanswered`."""
        await self.places.acquire()

    def answered(self) -> None:
        self.successes += 1
        if self.successes >= self.allowed < self.most:
            self._allow(self.allowed + 1)
            self.places.release()
        self.places.release()

    def unanswered(self) -> None:
        if self.allowed == 1:
            self.places.release()
        else:
            self._allow(self.allowed - 1)

    def _allow(self, places: int) -> None:
        self.allowed, self.successes = places, 0
