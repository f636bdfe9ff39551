"""Admission: API requests are refused while the model loads, after the engine died, and at the end of a drain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.requests.errors import QueueFullError
from engine_server.server.http.errors import ApiError, as_api_error, shutting_down

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from engine_server.server.engine_host import EngineHost


class Drain(Enum):
    """The phases of a drain."""

    NONE = "none"
    # Not ready any more, but requests are still accepted, since routers may not have seen it yet.
    ANNOUNCED = "announced"
    # New requests are refused, those in flight finish.
    CLOSED = "closed"


class Gate:
    """ASGI middleware that admits API requests and counts those in flight.

    Every request is one, unknown paths included, except those for exempt paths, which are answered at any time.
    """

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app = app
        self._host = host
        self._exempt: set[str] = set()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.drain = Drain.NONE

    def exempt(self, paths: Iterable[str]) -> None:
        """Answer requests for these paths at any time, and don't count them."""
        self._exempt.update(paths)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def loading(self) -> bool:
        return self._host.loading

    async def wait_until_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in self._exempt:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"])
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        self._in_flight += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def _refusal(self, method: str) -> ApiError | None:
        """Return the error that a new request gets; None if it is admitted."""
        if refusal := unavailable(self._host):
            return refusal
        if self.drain is Drain.CLOSED:
            return shutting_down()
        if method == "POST":
            try:
                self._host.engine.check_room()
            except QueueFullError as error:
                return as_api_error(error)
        return None


def unavailable(host: EngineHost) -> ApiError | None:
    """Return the error of requests while the engine is not loaded, or dead; None while it serves."""
    if host.loading:
        message = f"the model is loading (phase: {host.phase}); try again soon"
        return ApiError(503, message, code=ErrorCode.LOADING, retry_after=2)
    if host.death is not None:
        return ApiError(503, "the engine is dead", code=ErrorCode.ENGINE_DEAD, retry_after=1, close=True)
    return None
