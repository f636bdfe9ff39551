"""The transport as answers use it: it disconnects clients that read too slowly."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from engine_server.shared.slow_readers import LEAST_RATE, limit_unsent_bytes

logger = logging.getLogger(__name__)

# Checks within the time in which a client has to read enough. A stall of the event loop counts as one of them.
CHECKS = 4


class AnswerTransport(asyncio.Transport):
    """The writing side of a connection."""

    def __init__(self, transport: asyncio.Transport, read_seconds: float, close: Callable[[], None]) -> None:
        """read_seconds: time in which a client has to read at LEAST_RATE on average, or the connection is aborted.

        close: called when no further answer is written.
        """
        super().__init__()
        self._transport = transport
        limit_unsent_bytes(transport)
        self._read_seconds = read_seconds
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._num_written = 0
        # The number of bytes that the socket has taken by which the client has read enough, and the checks since it was
        # set.
        self._num_wanted = 0
        self._num_checks = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: Any) -> None:
        self._num_written += len(data)
        self._transport.write(data)
        if self._timer is None:
            self._begin_time()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()

    def stop(self) -> None:
        """Stop checking: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin_time(self) -> None:
        num_taken = self._num_written - self._transport.get_write_buffer_size()
        self._num_wanted = num_taken + math.ceil(LEAST_RATE * self._read_seconds)
        self._num_checks = 0
        self._start_timer()

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._read_seconds / CHECKS, self._check_progress)

    def _check_progress(self) -> None:
        self._timer = None
        pending = self._transport.get_write_buffer_size()
        if not pending:
            return
        self._num_checks += 1
        if self._num_written - pending >= self._num_wanted:
            self._begin_time()
        elif self._num_checks < CHECKS:
            self._start_timer()
        else:
            logger.warning(
                "disconnecting a client that has read less than %d bytes/s for %g s",
                LEAST_RATE,
                self._read_seconds,
            )
            self._transport.abort()
