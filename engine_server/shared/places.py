"""The places for the connections of clients to one port."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable


class Occupant(asyncio.Protocol, ABC):
    """A connection of a client."""

    @abstractmethod
    def close_idle(self) -> None:
        """Close the connection, on which nothing is in flight."""


class Places:
    """Up to `limit` connections. When all are taken, the one that has been idle for longest is closed for a new one."""

    def __init__(self, limit: int, on_idle_closed: Callable[[], None] = lambda: None) -> None:
        """Call `on_idle_closed` for each connection that is closed for a new one."""
        self._limit = limit
        self._on_idle_closed = on_idle_closed
        self._taken: set[Occupant] = set()
        # Those on which nothing is in flight; the longest idle one is first.
        self._idle: dict[Occupant, None] = {}
        # Called when a place is free; None unless a client waits for one.
        self._on_free: Callable[[], None] | None = None

    @property
    def full(self) -> bool:
        return len(self._taken) >= self._limit

    def take(self, occupant: Occupant) -> None:
        """Give a new connection a place."""
        self._taken.add(occupant)

    def wait(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once a place is free: an idle connection's, or that of the first to end or to become idle."""
        self._on_free = on_free
        if self._idle:
            self._close(next(iter(self._idle)))

    def note_idle(self, occupant: Occupant) -> None:
        """Note that nothing is in flight on a connection."""
        self._idle[occupant] = None
        if self._on_free is not None:
            self._close(occupant)

    def note_busy(self, occupant: Occupant) -> None:
        """Note that a part of a request arrived on a connection."""
        self._idle.pop(occupant, None)

    def free(self, occupant: Occupant) -> None:
        """Note that a connection is closed."""
        self._taken.discard(occupant)
        self._idle.pop(occupant, None)
        on_free, self._on_free = self._on_free, None
        if on_free is not None:
            on_free()

    def _close(self, occupant: Occupant) -> None:
        del self._idle[occupant]
        self._on_idle_closed()
        occupant.close_idle()
