"""The interface by which a source scales a deployment from zero replicas."""

from typing import Protocol


class WakeError(Exception):
    """The deployment could not be woken; the message says why."""


class Waker(Protocol):
    """Scales one deployment from zero. Equal wakers mean the same time at zero; the next time has another one."""

    async def wake(self) -> None:
        """Set the number of replicas if it still is zero. Raises WakeError."""
        ...
