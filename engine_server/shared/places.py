"""The places for the connections of clients to one port."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum


class Stage(IntEnum):
    """What a connection that may be closed for a new one waits for; those of a lower stage are closed first."""

    IDLE = 0
    HEAD = 1
    BODY = 2


class Occupant(asyncio.Protocol, ABC):
    """A connection of a client."""

    # The address by which the client is known.
    sender: str = ""

    @abstractmethod
    def give_way(self) -> None:
        """Close the connection, which waits for a request or for the rest of one."""


class Sender:
    """The connections of one sender that may be closed for new ones."""

    __slots__ = ("count", "waiting")

    def __init__(self) -> None:
        # By stage; the one that has been in it for longest is first.
        self.waiting: tuple[dict[Occupant, None], ...] = tuple({} for _ in Stage)
        self.count = 0

    def first(self) -> Occupant:
        """Return the connection to close first."""
        return next(one for waiting in self.waiting for one in waiting)


class Places:
    """Up to `limit` connections. When all are taken, one that waits for its client is closed for a new one.

    It is one of the sender that has most of these: its longest idle one, or else one with an unfinished request. A new
    connection is busy until it has sent something or `end_grace` is called for it.
    """

    def __init__(self, limit: int, on_closed: Callable[[], None] = lambda: None) -> None:
        """Call `on_closed` for each connection that is closed for a new one."""
        self._limit = limit
        self._on_closed = on_closed
        self._taken: set[Occupant] = set()
        # Those that have sent nothing, in the time that they have for it.
        self._new: set[Occupant] = set()
        # Those that are being closed for a new one.
        self._closing: set[Occupant] = set()
        # Those that may be closed, by connection and by sender, and senders by the number of these connections.
        self._waiting: dict[Occupant, tuple[Stage, str]] = {}
        self._senders: dict[str, Sender] = {}
        self._by_count: dict[int, dict[Sender, None]] = {}
        self._most = 0
        # Called when a place is free; None unless a client waits for one.
        self._on_free: Callable[[], None] | None = None

    @property
    def full(self) -> bool:
        return len(self._taken) >= self._limit

    def take(self, occupant: Occupant) -> None:
        """Give a new connection a place."""
        self._taken.add(occupant)
        self._new.add(occupant)

    def wait(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once a place is free, for which a connection that waits for its client is closed."""
        self._on_free = on_free
        self._make_room()

    def end_grace(self, occupant: Occupant) -> None:
        """Note that a new connection has had the time for its first bytes."""
        if occupant in self._new:
            self.note_waiting(occupant, Stage.IDLE)

    def note_waiting(self, occupant: Occupant, stage: Stage) -> None:
        """Note that nothing is in flight on a connection, which waits for its client."""
        noted = self._waiting.get(occupant)
        if noted is not None:
            if noted[0] is stage:
                return
            self._remove(occupant)
        if occupant in self._closing:
            return
        self._new.discard(occupant)
        self._waiting[occupant] = stage, occupant.sender
        sender = self._senders.get(occupant.sender)
        if sender is None:
            sender = self._senders[occupant.sender] = Sender()
        sender.waiting[stage][occupant] = None
        self._count(sender, sender.count + 1)
        if self._on_free is not None:
            self._make_room()

    def note_busy(self, occupant: Occupant) -> None:
        """Note that a request arrived on a connection."""
        if occupant in self._waiting:
            self._remove(occupant)
        else:
            self._new.discard(occupant)

    def free(self, occupant: Occupant) -> None:
        """Note that a connection is closed."""
        self._taken.discard(occupant)
        self._closing.discard(occupant)
        self.note_busy(occupant)
        on_free, self._on_free = self._on_free, None
        if on_free is not None:
            on_free()

    def _make_room(self) -> None:
        """Close the next connection that may be closed, unless one is being closed already."""
        if self._closing or not self._most:
            return
        occupant = next(iter(self._by_count[self._most])).first()
        self._remove(occupant)
        self._closing.add(occupant)
        self._on_closed()
        occupant.give_way()

    def _remove(self, occupant: Occupant) -> None:
        stage, name = self._waiting.pop(occupant)
        sender = self._senders[name]
        del sender.waiting[stage][occupant]
        self._count(sender, sender.count - 1)
        if not sender.count:
            del self._senders[name]

    def _count(self, sender: Sender, count: int) -> None:
        """Set the number of a sender's connections, which changes by one."""
        before, sender.count = sender.count, count
        if before:
            equals = self._by_count[before]
            del equals[sender]
            if not equals:
                del self._by_count[before]
        if count:
            self._by_count.setdefault(count, {})[sender] = None
        if count > self._most or (before == self._most and before not in self._by_count):
            self._most = count
