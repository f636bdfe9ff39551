"""The seam by which a recorder sees the operations of a step that torch's dispatcher doesn't."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OperationRecorder(Protocol):
    """A recorder of the operations of one step, in order."""

    def native(self, name: str, arguments: Sequence[Any]) -> None:
        """Record the call of a native function that was just made."""

    def whole(self, function: Callable[..., T], arguments: tuple[Any, ...], options: dict[str, Any]) -> T:
        """Call a function and record the call, not the operations in it; return its result."""


# The recorder of this thread's operations.
recorder: ContextVar[OperationRecorder | None] = ContextVar("recorder", default=None)


def one_operation(function: Callable[P, T]) -> Callable[P, T]:
    """Make each call of `function` one operation of a recorded step.

    For functions whose operations depend on the number of rows, or on values: a program then calls the function itself.
    Each result must be new memory in every call, or an argument in every call.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        current = recorder.get()
        if current is None:
            return function(*arguments, **options)
        return current.whole(function, arguments, options)

    return call
