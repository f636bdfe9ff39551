"""The memory that the bodies of all requests in flight share."""

from __future__ import annotations

from typing import Self

MAX_BYTES = 256 << 20


class BodyBudget:
    """Bytes that the bodies of requests may take together."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.free = max_bytes


class BodyShare:
    """One body's part of the budget, which returns at the end of the context."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.grow(-self.num_bytes)

    def grow(self, num_bytes: int) -> bool:
        """Take more bytes, or return some if the number is negative; return False if too few are free."""
        if num_bytes > self._budget.free:
            return False
        self._budget.free -= num_bytes
        self.num_bytes += num_bytes
        return True
