"""Admission: API requests are refused while the model loads, after the engine died, and at the end of a drain."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.errors import QueueFullError
from engine_server.server.http.errors import ApiError, as_api_error, dead, shutting_down

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost


class Drain(Enum):
    """The phases of a drain."""

    NONE = "none"
    # Not ready any more, but requests are still accepted, since routers may not have seen it yet.
    ANNOUNCED = "announced"
    # New requests are refused, those in flight finish.
    CLOSED = "closed"


class Gate:
    """Refuses requests while they can't be served, and counts those in flight: each is in the gate's context."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.drain = Drain.NONE

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def loading(self) -> bool:
        return self._host.loading

    async def wait_until_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def refusal(self, method: str) -> ApiError | None:
        """Return the error that a new request gets; None if it is admitted."""
        if refusal := unavailable(self._host):
            return refusal
        if self.drain is Drain.CLOSED:
            return shutting_down()
        if method == "POST":
            try:
                self._host.model.engine.check_room()
            except QueueFullError as error:
                return as_api_error(error)
        return None

    def __enter__(self) -> None:
        self._in_flight += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()


def unavailable(host: EngineHost) -> ApiError | None:
    """Return the error of requests while the engine is not loaded, or dead; None while it serves."""
    if host.loading:
        message = f"the model is loading (phase: {host.phase}); try again soon"
        return ApiError(ErrorCode.LOADING, message, retry_after=2)
    if host.death is not None:
        return dead()
    return None
