"""Results that are computed before they are asked for."""

from typing import Generic, TypeVar

from torch import Tensor

Result = TypeVar("Result")


class Ahead(Generic[Result]):
    """The result for one tensor, known by its identity, until another's is put in its place."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._result: Result | None = None

    def put(self, x: Tensor, result: Result) -> Result:
        """Keep the result for `x`, and return it."""
        self._input, self._result = x, result
        return result

    def get(self, x: Tensor) -> Result | None:
        """Return the result for this very tensor, or None if it is another's."""
        return self._result if x is self._input else None

    def forget(self) -> None:
        self._input = self._result = None
