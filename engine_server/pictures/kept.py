"""What is kept in bounded memory, by digest."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by digest: those that were used the longest ago give way. One that is larger than all is not kept.

    limit: of the sizes of all values together.
    """

    def __init__(self, limit: int, size_of: Callable[[V], int]) -> None:
        self._limit = limit
        self._size_of = size_of
        self._used = 0
        self._values: OrderedDict[str, V] = OrderedDict()

    def find(self, digest: str) -> V | None:
        """Return a value that is kept, which counts as used; None if it isn't."""
        if digest in self._values:
            self._values.move_to_end(digest)
        return self._values.get(digest)

    def keep(self, digest: str, value: V) -> None:
        self.pop(digest)
        if self._size_of(value) > self._limit:
            return
        self._values[digest] = value
        self._used += self._size_of(value)
        while self._used > self._limit:
            _, oldest = self._values.popitem(last=False)
            self._used -= self._size_of(oldest)

    def pop(self, digest: str) -> None:
        """Drop a value, if it is kept."""
        if (value := self._values.pop(digest, None)) is not None:
            self._used -= self._size_of(value)
