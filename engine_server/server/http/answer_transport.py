"""The transport as answers use it: it disconnects clients that stop reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from engine_server.shared.slow_readers import limit_unsent_bytes

logger = logging.getLogger(__name__)

# Checks of a client's progress within the time that it may take. A stall of the event loop counts as one of them.
CHECKS = 4


class AnswerTransport(asyncio.Transport):
    """The writing side of a connection."""

    def __init__(self, transport: asyncio.Transport, read_seconds: float, close: Callable[[], None]) -> None:
        """read_seconds: time without a byte read by the client, after which the connection is aborted.

        close: called when no further answer is written.
        """
        super().__init__()
        self._transport = transport
        limit_unsent_bytes(transport)
        self._read_seconds = read_seconds
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._num_written = 0
        # The number of bytes that the socket had taken at the latest progress, and the checks since then.
        self._num_taken = 0
        self._num_checks = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: Any) -> None:
        self._num_written += len(data)
        self._transport.write(data)
        if self._timer is None:
            self._num_checks = 0
            self._start_timer()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()

    def stop(self) -> None:
        """Stop checking: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._read_seconds / CHECKS, self._check_progress)

    def _check_progress(self) -> None:
        self._timer = None
        pending = self._transport.get_write_buffer_size()
        if not pending:
            return
        self._num_checks += 1
        num_taken = self._num_written - pending
        if num_taken > self._num_taken:
            self._num_taken, self._num_checks = num_taken, 0
        if self._num_checks >= CHECKS:
            logger.warning("disconnecting a client that has read nothing for %g s", self._read_seconds)
            self._transport.abort()
        else:
            self._start_timer()
