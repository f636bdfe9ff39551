"""Cancellation of a request whose client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

# The ASGI extension whose entry "while_connected" is a WhileConnected.
DISCONNECT = "fairlead.disconnect"


class WhileConnected:
    """A context that ends when the request's client disconnects, because its task is cancelled.

    The context swallows this cancellation, and no other, as asyncio.timeout does.
    """

    def __init__(self) -> None:
        self._disconnected = False
        # The task in the context, and the number of its cancellations when it entered.
        self._task: asyncio.Task[Any] | None = None
        self._num_cancelled = 0

    def disconnect(self) -> None:
        """Cancel the task that is in the context, or that will enter it."""
        if not self._disconnected:
            self._disconnected = True
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._num_cancelled = task, task.cancelling()
        if self._disconnected:
            task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        task, self._task = self._task, None
        assert task is not None
        if not self._disconnected:
            return False
        return task.uncancel() <= self._num_cancelled and kind is asyncio.CancelledError
