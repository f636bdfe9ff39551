"""The bytes of bodies that are read before all else on the event loop has its turn."""

import asyncio

# It takes 5 ms to read them. The event loop by itself reads 8 MB from each connection.
MOST_BYTES = 4 << 20


class ReadingTurn:
    """What all connections have read in this turn of the event loop."""

    def __init__(self) -> None:
        self._read = 0

    def add(self, num_bytes: int) -> bool:
        """Count what a connection has read, and return True if it should read on in the next turn only."""
        if not self._read:
            asyncio.get_running_loop().call_soon(self._end)
        self._read += num_bytes
        return self._read > MOST_BYTES

    def _end(self) -> None:
        self._read = 0
