"""A map in bounded memory."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """Values by key: those that were used the longest ago give way. One that is larger than all is not kept.

    limit: of the sizes of all entries together. size_of: an entry's; without it, the limit is a number of entries.
    """

    def __init__(self, limit: int, size_of: Callable[[K, V], int] = lambda key, value: 1) -> None:
        self._limit = limit
        # The sizes of the entries that are kept.
        self.used = 0
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: K) -> V | None:
        """Return a value that is kept, which counts as used; None if it isn't."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        self.pop(key)
        size = self._size_of(key, value)
        if size > self._limit:
            return
        self._values[key] = value
        self.used += size
        while self.used > self._limit:
            self.used -= self._size_of(*self._values.popitem(last=False))

    def pop(self, key: K) -> None:
        """Drop a value, if it is kept."""
        if (value := self._values.pop(key, None)) is not None:
            self.used -= self._size_of(key, value)
