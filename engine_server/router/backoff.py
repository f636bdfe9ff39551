"""Growing pauses between attempts that fail."""

import asyncio
import random


class Backoff:
    """Pauses that double up to the longest, in seconds, and vary so that several routers do not retry in step."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    async def wait(self) -> None:
        """Pause after a failure."""
        pause, self._next = self._next, min(2.0 * self._next, self._longest)
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next = self._first
