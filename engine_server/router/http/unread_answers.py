"""The memory of answers that clients have not taken."""

from collections.abc import Callable, Hashable
from typing import Protocol

from engine_server.router.http.body_budget import BodyBudget


class Reader(Protocol):
    """A connection whose client is behind with reading."""

    def abort(self) -> None:
        """Reset the connection."""
        ...


class UnreadAnswers:
    """Bytes that wait for clients, which count in their owners' shares of the budget of all bodies.

    Where an owner's share has no room for more, the connections of that owner that are behind for longest are reset.
    """

    def __init__(self, budget: BodyBudget, on_reset: Callable[[], None]) -> None:
        """Call `on_reset` for each connection that is reset."""
        self._budget = budget
        self._on_reset = on_reset
        # By owner and connection; those that are behind for longest are first.
        self._unread: dict[Hashable, dict[Reader, int]] = {}

    def count(self, owner: Hashable, reader: Reader, size: int) -> None:
        """Count `size` bytes for a connection, in place of what it had."""
        readers = self._unread.setdefault(owner, {})
        while (more := size - readers.setdefault(reader, 0)) > 0 and not self._budget.claim_unread(
            owner, more
        ):
            longest = next(iter(readers))
            self.give_up(longest)
            self.forget(owner, longest)
            if longest is reader:
                return
        if more < 0:
            self._budget.release(owner, -more)
        readers[reader] = size

    def give_up(self, reader: Reader) -> None:
        """Reset a connection whose client takes too little."""
        self._on_reset()
        reader.abort()

    def forget(self, owner: Hashable, reader: Reader) -> None:
        """Count nothing more for a connection."""
        readers = self._unread.get(owner, {})
        size = readers.pop(reader, 0)
        if not readers:
            self._unread.pop(owner, None)
        if size:
            self._budget.release(owner, size)
